# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The ledger: rows of committed steps, over kills, restarts, broken streams and changing worlds, against the oracle."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from order import Epoch as Oracle
from peer import Peer, Table, rows_of

from kubeflow_datacache import Batch, DataCache, Loader, World


@dataclass(frozen=True)
class Schedule:
    """One training: what is read, and each attempt's world, workers and number of steps until it dies."""

    words: dict[str, Any]
    attempts: list[tuple[int, int, int]]
    epochs: int


def schedule(rng: random.Random, rows: int) -> Schedule:
    """A random training over a table of so many rows."""
    batch = rng.choice([1, 2, 5, 8, 13, rows + 3, rng.randint(1, rows + 1)])
    batch = max(batch, rows // 12)
    words = {
        "global_batch_size": batch,
        "seed": rng.getrandbits(64),
        "shuffle": rng.random() < 0.85,
        "clump": rng.choice([1, 1, 1, 2, 5, 64]),
        "tail": rng.choice(["drop", "keep", "pad"]),
        "prefetch_bytes": rng.choice([1, 500, 5_000, 1 << 20]),
    }
    steps = rows // batch + 1
    attempts = [(rng.randint(1, 6), rng.choice([1, 1, 2, 3]), rng.randint(0, steps + 1)) for _ in range(4)]
    return Schedule(words, attempts, rng.randint(1, 2))


Ledger = dict[tuple[int, int], list[Batch]]  # (epoch, step): each rank's batch


class Fleet:
    """The readers of one attempt: every worker of every rank, in lock step as data parallel training runs them."""

    def __init__(self, cache: DataCache, plan: Schedule, world: int, workers: int, state: str | None) -> None:
        self.plan, self.state = plan, state
        self.readers = [
            [cache.loader(**plan.words, world=World(rank, world), worker=w, workers=workers) for w in range(workers)]
            for rank in range(world)
        ]
        if state is not None:
            for loader in self.all():
                loader.load_state_dict(json.loads(state))

    def all(self) -> list[Loader]:
        """Every reader."""
        return [loader for rank in self.readers for loader in rank]

    def run(self, ledger: Ledger, steps: int) -> bool:
        """Commits at most so many steps, then dies; whether the training was finished before."""
        one = self.readers[0][0]
        while one.epoch < self.plan.epochs:
            first, streams = one.next_step, [[iter(loader) for loader in rank] for rank in self.readers]
            for step in range(first, one.steps):
                mine = [rank[step % len(rank)] for rank in streams]
                if steps == 0:  # some ranks have their batch already: it does not count
                    for stream in mine[::2]:
                        next(stream)
                    return False
                batches = [next(stream) for stream in mine]
                assert {(b.epoch, b.step) for b in batches} == {(one.epoch, step)}
                assert (one.epoch, step) not in ledger, "a step was committed twice"
                ledger[one.epoch, step] = batches
                rank = self.readers[step % len(self.readers)]  # any rank's state will do
                self.state, steps = json.dumps(rank[step % len(rank)].state_dict()), steps - 1
            assert all(next(stream, None) is None for rank in streams for stream in rank), "a rank has more steps"
            for loader in self.all():
                loader.set_epoch(loader.epoch + 1)
        return True

    def close(self) -> None:
        """Ends every reader."""
        for loader in self.all():
            loader.close()


def train(cache: DataCache, plan: Schedule, disturb: Callable[[], None]) -> Ledger:
    """Runs the schedule to its end, each attempt from the state that the one before saved last."""
    ledger: Ledger = {}
    state: str | None = None
    for world, workers, steps in [*plan.attempts, (2, 1, 1 << 30)]:
        disturb()
        fleet = Fleet(cache, plan, world, workers, state)
        try:
            if fleet.run(ledger, steps):
                break
            state = fleet.state
        finally:
            fleet.close()
    return ledger


def check(plan: Schedule, rows: int, ledger: Ledger) -> None:
    """Every global batch is the oracle's: same rows, same order, same mask, same content."""
    words = {k: v for k, v in plan.words.items() if k not in ("prefetch_bytes", "global_batch_size")}
    for epoch in range(plan.epochs):
        oracle = Oracle(rows=rows, epoch=epoch, global_batch=plan.words["global_batch_size"], **words)
        assert sorted(s for e, s in ledger if e == epoch) == list(range(oracle.steps()))
        for step in oracle.share():
            batches = ledger[epoch, step.number]
            got = [batch.arrow() for batch in batches]
            ids = [row for part in got for row in part.column("id").to_pylist()]
            assert ids == step.rows, (plan, epoch, step.number)
            assert [row for batch in batches for row in batch.indices.tolist()] == step.rows
            assert [ok for batch in batches for ok in batch.valid.tolist()] == step.valid
            assert max(b.rows for b in batches) - min(b.rows for b in batches) <= 1
            assert pa.Table.from_batches(got) == pa.Table.from_batches([rows_of(step.rows)])


def test_no_row_is_lost_repeated_or_moved(rng: random.Random, thorough: int) -> None:
    for count in range(200 * thorough):
        seed = rng.getrandbits(48)
        own = random.Random(seed)
        rows = own.choice([0, 1, 2, 7, 30, 97, 101, own.randint(0, 150)])
        plan = schedule(own, rows)
        try:
            with Peer(Table.random(rows, own)) as peer, DataCache(peer.endpoint, retry_seconds=20) as cache:
                check(plan, rows, train(cache, plan, functools.partial(disturb, peer, own)))
        except BaseException:
            print(f"schedule {count} failed: --seed of its own {seed}: {plan}")
            raise


def disturb(peer: Peer, rng: random.Random) -> None:
    """Before an attempt: streams that will break, a head that loads, processes that restart, rows that move."""
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
