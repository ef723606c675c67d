# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The rows of all committed steps equal the oracle's, over kills, restarts, broken streams and changing worlds."""

from __future__ import annotations

import functools
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

import pyarrow as pa
import pytest
from chance import Chance
from kit.deadline import limit
from order import Epoch as Oracle
from peer import Peer, Selected, Table, rows_of

from kubeflow_datacache import Batch, DataCache, Loader, Split, World
from kubeflow_datacache.cache import Transport
from kubeflow_datacache.fetch import retry

SIZES = (0, 1, 2, 3, 7, 30, 64, 97, 101, 128)  # row counts that every second schedule takes in turn


@dataclass(frozen=True)
class Schedule:
    """One training: the loader's options, and the world, workers and number of steps of each attempt."""

    rows: int
    options: dict[str, Any]
    attempts: list[tuple[int, int, int]]
    epochs: int

    def selected(self) -> list[int]:
        """The rows of the table that the options select, in the order of the selection."""
        split = self.options["split"]
        fields = {"filter": self.options["filter"], "split": None if split is None else split.request()}
        request = {name: value for name, value in fields.items() if value is not None}
        return list(Selected.of(request, Table(self.rows, [])).rows)

    def traits(self) -> dict[str, int]:
        """The features that the schedule exercises: 1 if present, else 0."""
        batch, worlds = self.options["global_batch_size"], [world for world, _, _ in self.attempts]
        traits = {
            "schedules": True,
            "indivisible rows": self.rows % batch != 0,
            "world > batch": max(worlds) > batch,
            "indivisible batch": any(batch % world for world in worlds),
            "several workers": max(workers for _, workers, _ in self.attempts) > 1,
            "clumps": self.options["shuffle"] and self.options["clump"] > 1,
            "windows": self.options["shuffle"] and self.options["window"] > 0,
            "not shuffled": not self.options["shuffle"],
            "several epochs": self.epochs > 1,
            "filters": self.options["filter"] is not None,
            "splits": self.options["split"] is not None,
            "splits in order": self.options["split"] is not None and not self.options["split"].shuffle,
            "nothing selected": self.rows > 0 and not self.selected(),
            **{f"tail {tail}": self.options["tail"] == tail for tail in ("drop", "keep", "pad")},
            **{f"{rows} rows": self.rows == rows for rows in SIZES},
        }
        return {name: int(has) for name, has in traits.items()}


def schedule(number: int, rng: random.Random) -> Schedule:
    """A random training."""
    rows = SIZES[number // 2 % len(SIZES)] if number % 2 else rng.randint(0, 150)
    batch = rng.choice([1, 2, 5, 8, 13, rows + 3, rng.randint(1, rows + 1)])
    batch = max(batch, rows // 12)
    options = {
        "global_batch_size": batch,
        "seed": rng.getrandbits(64),
        "shuffle": rng.random() < 0.85,
        "clump": rng.choice([1, 1, 1, 2, 5, 64]),
        "window": rng.choice([0, 0, 1, 8]),
        "tail": rng.choice(["drop", "keep", "pad"]),
        "prefetch_bytes": rng.choice([1, 500, 5_000, 1 << 20]),
        "filter": rng.choice([None, None, f"id % {rng.randint(2, 5)} = 1", f"id >= {rng.randint(0, rows)}"]),
        "split": rng.choice([None, _split(rng)]),
    }
    steps = rows // batch + 1
    attempts = [(rng.randint(1, 6), rng.choice([1, 1, 2, 3]), rng.randint(0, steps + 1)) for _ in range(4)]
    return Schedule(rows, options, attempts, rng.randint(1, 2))


def _split(rng: random.Random) -> Split:
    of = rng.randint(1, 12)
    start = rng.randint(0, of - 1)
    return Split(of=of, start=start, stop=rng.randint(start, of), seed=rng.getrandbits(64), shuffle=rng.random() < 0.7)


Committed = dict[tuple[int, int], list[Batch]]  # (epoch, step): the batch of each rank


class Fleet:
    """The readers of one attempt: all workers of all ranks, in lockstep as in data-parallel training."""

    def __init__(
        self,
        cache: DataCache,
        plan: Schedule,
        world: int,
        workers: int,
        state: str | None,
        disturb: Callable[[bool], None],
    ) -> None:
        self.plan, self.state, self.disturb = plan, state, disturb
        self.readers = [
            [cache.loader(**plan.options, world=World(rank, world), worker=w, workers=workers) for w in range(workers)]
            for rank in range(world)
        ]
        if state is not None:
            for loader in self.all():
                loader.load_state_dict(json.loads(state))

    def all(self) -> list[Loader]:
        """All readers."""
        return [loader for rank in self.readers for loader in rank]

    def run(self, committed: Committed, steps: int) -> bool:
        """Commits at most `steps` steps and stops; returns whether the training was complete before that."""
        one = self.readers[0][0]
        while True:
            streams = [[iter(loader) for loader in rank] for rank in self.readers]
            if one.epoch >= self.plan.epochs:
                return True
            begun = one.next_step
            for step in range(begun, one.steps):
                mine = [rank[step % len(rank)] for rank in streams]
                if steps == 0:  # some ranks have read a batch of this step already; it is not committed
                    for stream in mine[::2]:
                        next(stream)
                    return False
                self.disturb(True)
                batches = [next(stream) for stream in mine]
                assert {(b.epoch, b.step) for b in batches} == {(one.epoch, step)}
                assert (one.epoch, step) not in committed, "a step was committed twice"
                committed[one.epoch, step] = batches
                rank = self.readers[step % len(self.readers)]  # the state of any rank is valid
                self.state, steps = json.dumps(rank[step % len(rank)].state_dict()), steps - 1
            # In every second epoch, do not read past the last batch, like loops that count batches.
            for rank, loaders in zip(streams, self.readers, strict=True):
                for stream, loader in zip(rank, loaders, strict=True):
                    if one.epoch % 2 == 0 or loader.next_step == begun:
                        assert next(stream, None) is None, "a rank has more steps"

    def close(self) -> None:
        """Closes all readers."""
        for loader in self.all():
            loader.close()


def train(cache: DataCache, plan: Schedule, disturb: Callable[[bool], None]) -> tuple[Committed, int]:
    """Runs the schedule to its end, each attempt from the last state that the previous one saved.

    disturb(whether in the middle of an epoch) is called before attempts and steps. Returns the committed batches and
    the number of reconnects.
    """
    committed: Committed = {}
    state: str | None = None
    reconnects = 0
    for world, workers, steps in [*plan.attempts, (2, 1, 1 << 30)]:
        disturb(False)
        fleet = Fleet(cache, plan, world, workers, state, disturb)
        try:
            if fleet.run(committed, steps):
                break
            state = fleet.state
        finally:
            fleet.close()
            reconnects += sum(loader.stats().reconnects for loader in fleet.all())
    return committed, reconnects


def check(plan: Schedule, committed: Committed) -> None:
    """Asserts that every global batch equals the oracle's: rows, order, mask and content."""
    others = ("prefetch_bytes", "global_batch_size", "filter", "split")
    options, selected = {k: v for k, v in plan.options.items() if k not in others}, plan.selected()
    for epoch in range(plan.epochs):
        oracle = Oracle(rows=len(selected), epoch=epoch, global_batch=plan.options["global_batch_size"], **options)
        assert sorted(s for e, s in committed if e == epoch) == list(range(oracle.steps()))
        for step in oracle.share():
            batches = committed[epoch, step.number]
            got = [batch.arrow() for batch in batches]
            ids = [row for part in got for row in part.column("id").to_pylist()]
            rows = [selected[row] for row in step.rows]
            assert ids == rows, (plan, epoch, step.number)
            assert [row for batch in batches for row in batch.indices.tolist()] == step.rows
            assert [ok for batch in batches for ok in batch.valid.tolist()] == step.valid
            assert max(b.num_rows for b in batches) - min(b.num_rows for b in batches) <= 1
            assert pa.Table.from_batches(got) == pa.Table.from_batches([rows_of(rows)])


@pytest.mark.parametrize("count", [50, pytest.param(200, marks=pytest.mark.night)])
def test_no_row_is_lost_repeated_or_moved(chance: Chance, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(retry, "_FIRST", 0.002)  # seconds; short, as the peer recovers at once and breaks are many
    seen: Counter[str] = Counter()
    for number, rng in chance.schedules(count):
        plan = schedule(number, rng)
        table = Table.random(plan.rows, rng)
        transport = rng.choice(get_args(Transport))
        with Peer(table) as peer, DataCache(peer.endpoint, retry_seconds=limit(), transport=transport) as cache:
            committed, reconnects = train(cache, plan, functools.partial(disturb, peer, rng))
        check(plan, committed)
        seen.update({**plan.traits(), "steps": len(committed), "reconnects": reconnects, f"over {transport}": 1})
    summary = ", ".join(f"{count} {name}" for name, count in seen.most_common())
    chance.note(f"committed rows, no mismatch: {summary}")
    few = chance.only is not None or count < 200
    assert few or all(seen.values()), f"the schedules left something out: {summary}"


def disturb(peer: Peer, rng: random.Random, in_mid_epoch: bool) -> None:
    """Injects one fault: broken streams, a loading head, restarted processes, or moved rows."""
    if in_mid_epoch and rng.random() < 0.8:
        return
    peer.faults.breaks = [rng.randint(0, 30) for _ in range(rng.choice([0, 0, 1, 3]))]
    peer.faults.head_unavailable = rng.choice([0, 0, 0, 1])
    if rng.random() < 0.2:
        peer.restart()
    if rng.random() < 0.2:
        peer.restart(Table.random(peer.table.rows, rng).nodes)


def test_rows_that_move_to_other_nodes_in_mid_epoch(peer: Peer, cache: DataCache) -> None:
    loader = cache.loader(global_batch_size=5, seed=3, tail="keep", prefetch_bytes=1, world=World(0, 1))
    got: list[int] = []
    for batch in loader:
        got += batch.numpy()["id"].tolist()
        if batch.step == 4:
            peer.restart([(0, 3), (3, 90), (90, 100)])
            peer.faults.breaks = [2, 5]
        if batch.step == 6:
            peer.restart([(0, 100)])
    assert got == Oracle(rows=100, seed=3, global_batch=5).share_rows()


@pytest.mark.parametrize("breaks", [[0], [1], [6, 0, 0, 1], [20] * 3])
def test_broken_streams_go_on_at_the_next_row(peer: Peer, cache: DataCache, breaks: list[int]) -> None:
    peer.faults.breaks = list(breaks)
    loader = cache.loader(global_batch_size=9, seed=1, tail="keep", world=World(0, 1))
    got = [row for batch in loader for row in batch.numpy()["id"].tolist()]
    assert got == Oracle(rows=100, seed=1, global_batch=9).share_rows()
    assert not peer.faults.breaks
    assert loader.stats().reconnects > 0
