# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Real servers are killed, stopped or frozen during an epoch; every committed batch is checked against the oracle."""

from __future__ import annotations

import dataclasses
import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from chance import Chance
from cluster import Cluster, Outage
from kit.deadline import limit
from lake import Lake
from order import Permutation
from wide import ROWS, rows_of, tokens_of, wide_table

from kubeflow_datacache import Batch, DataCache, Loader, Split, World
from kubeflow_datacache.cache import Transport
from kubeflow_datacache.order.epoch import Epoch, Share
from slow_store import SlowStore

Connect = Callable[..., DataCache]
WHOLE = Share()
GROUP = 1000  # rows of a row group


@pytest.mark.parametrize(
    ("rows", "count", "transport", "numbered"),
    [
        (ROWS, 2, "h2", False),
        pytest.param(9_973, 1, "grpc", False, marks=pytest.mark.night),
        pytest.param(9_973, 1, "h2", False, marks=pytest.mark.night),
        pytest.param(1, 1, "h2", False, marks=pytest.mark.night),
        pytest.param(0, 1, "grpc", False, marks=pytest.mark.night),
        pytest.param(ROWS, 1, "h2", True, marks=pytest.mark.night),
        (9_973, 1, "grpc", True),
    ],
)
def test_no_row_is_lost_when_servers_are_lost(
    server: Path,
    tmp_path: Path,
    connect: Connect,
    chance: Chance,
    monkeypatch: pytest.MonkeyPatch,
    rows: int,
    count: int,
    transport: Transport,
    numbered: bool,
) -> None:
    monkeypatch.setattr("kubeflow_datacache.loader.takes", lambda *_: numbered)
    metadata, seen = wide_table(Lake(tmp_path), rows), Counter[str]()
    with Cluster(server, metadata, tmp_path) as cluster:
        cluster.wait_ready()
        cache = connect(cluster.endpoint, retry_seconds=limit(), transport=transport)
        for number, rng in chance.schedules(count):
            training = Training(cluster, cache, rows, number, rng)
            training.run()
            seen.update({"schedules": 1, **training.seen})
    how = f"{rows} rows {'by number ' * numbered}over {transport}"
    chance.note(f"kills with {how}, no mismatch: {', '.join(f'{n} {name}' for name, n in seen.items())}")
    assert rows < ROWS or seen["reconnects"] > 0, "no kill has hit a stream"


@pytest.mark.parametrize("numbered", [False, pytest.param(True, marks=pytest.mark.night)])
def test_no_row_is_lost_from_spill_files(
    server: Path, tmp_path: Path, connect: Connect, chance: Chance, monkeypatch: pytest.MonkeyPatch, numbered: bool
) -> None:
    """With memory for half of a data node's rows, and files of which bytes are flipped while they are in use."""
    monkeypatch.setattr("kubeflow_datacache.loader.takes", lambda *_: numbered)
    monkeypatch.setenv("SPILL_DIR", str(tmp_path / "spill"))
    monkeypatch.setenv("MEMORY_LIMIT", "196MiB")
    metadata, seen = wide_table(Lake(tmp_path)), Counter[str]()
    with Cluster(server, metadata, tmp_path) as cluster:
        cluster.wait_ready()
        cache = connect(cluster.endpoint, retry_seconds=limit())
        for number, rng in chance.schedules(1):
            seen["flipped bytes"] += _flip(tmp_path / "spill", rng)
            training = Training(cluster, cache, ROWS, number, rng)
            training.run()
            seen.update({"schedules": 1, **training.seen})
    happened = ", ".join(f"{n} {name}" for name, n in seen.items())
    chance.note(f"kills with rows {'by number ' * numbered}from spill files, no mismatch: {happened}")
    assert "a chunk is decoded again" in "".join(log.read_text() for log in tmp_path.glob("node-*.log"))


@pytest.mark.parametrize(
    ("window", "spilled"),
    [*(pytest.param(window, False, marks=pytest.mark.night) for window in (0, 2)), (2, True)],
)
def test_no_row_is_lost_while_the_table_loads(
    server: Path,
    tmp_path: Path,
    connect: Connect,
    chance: Chance,
    monkeypatch: pytest.MonkeyPatch,
    window: int,
    spilled: bool,
) -> None:
    """Servers are lost while loaders read rows of a table that is not loaded yet, in memory or with spill files."""
    slow, seen = SlowStore(tmp_path, 0.2), Counter[str]()
    uri = slow.write("table.parquet", pa.Table.from_batches([rows_of(np.arange(ROWS))]), GROUP)
    with slow.served():
        for name, value in slow.environment().items():
            monkeypatch.setenv(name, value)
        for number, rng in chance.schedules(1):
            if spilled:  # in a folder of its own, as the files of another cluster would be taken over
                monkeypatch.setenv("SPILL_DIR", str(tmp_path / f"spill-{number}"))
                monkeypatch.setenv("MEMORY_LIMIT", "196MiB")
            with Cluster(server, "", tmp_path, flags=["--files", uri]) as cluster:
                cache = connect(cluster.endpoint, retry_seconds=limit())
                training = Training(cluster, cache, ROWS, 2 * number, rng)  # an even number: without a filter
                training.read_from_the_start(window, slow)
                training.run()
                seen.update({"schedules": 1, **training.seen})
    happened = ", ".join(f"{n} {name}" for name, n in seen.items())
    chance.note(f"kills while the table loads, windows of {window}{', spilled' * spilled}, no mismatch: {happened}")


def _flip(spill: Path, rng: random.Random) -> int:
    """Flips bits of ten bytes, in the rows of spill files. Returns how many."""
    files = sorted(spill.rglob("*.rows"))
    for path in rng.choices(files, k=10):
        with path.open("r+b") as file:
            size = file.seek(0, 2)
            at = rng.randrange(size // 4, size)  # not in the head
            file.seek(at)
            old = file.read(1)[0]
            file.seek(at)
            file.write(bytes([old ^ 1 << rng.randrange(8)]))
    return 10


class Training:
    """One epoch in up to three attempts with different worlds; kills servers in each and checks every batch."""

    def __init__(self, cluster: Cluster, cache: DataCache, rows: int, number: int, rng: random.Random) -> None:
        self.seen = Counter[str]()
        self._cluster, self._cache, self._number, self._rng = cluster, cache, number, rng
        self._store: SlowStore | None = None
        batch = rng.choice([97, 128, 1500] if rows == ROWS else [1, 2, 64, 1500, rows + 1])
        self._filter, self._split, self._selected = _selection(rows, rng, number)
        self.seen["selections"] += self._filter is not None
        self._order = Epoch(
            rows=len(self._selected),
            seed=rng.getrandbits(64),
            number=number,
            shuffle=rng.random() < 0.8,
            clump=rng.choice([1, 1, 3, 64]),
            window=rng.choice([0, 0, 16]),
            global_batch=max(batch, rows // 700),
            tail=rng.choice(["drop", "keep", "pad"]),
        )

    def read_from_the_start(self, window: int, store: SlowStore) -> None:
        """Takes rows in order, or in windows of this many row groups; the first kill comes while the table loads."""
        self._order = dataclasses.replace(self._order, shuffle=window > 0, clump=GROUP, window=window)
        self._store = store
        whole = dataclasses.replace(self._order, tail="keep")
        store.hold("table.parquet", int(whole.rows_of(range(whole.steps), WHOLE)[-1]) // GROUP)

    def run(self) -> None:
        """Runs all attempts, each from the last state that the previous one saved."""
        steps, state, done = self._order.steps, "", 0
        later = range(max(1, steps * 2 // 3), steps)
        ends = sorted(self._rng.sample(later, min(2, len(later))))
        for attempt, end in enumerate([*ends, steps]):
            # The first attempt has one reader and most steps: servers killed early in it still owe far more than
            # buffers hold.
            world, workers = (self._rng.randint(1, 3), self._rng.randint(1, 2)) if attempt else (1, 1)
            kill_at = self._rng.randint(done, max(done, end - 1)) if attempt else min(end - 1, self._first_kill())
            readers = [
                [self._reader(rank, world, worker, workers, state) for worker in range(workers)]
                for rank in range(world)
            ]
            state = self._attempt(readers, range(done, end), kill_at, everything=not attempt) or state
            done = end
            for loader in (loader for rank in readers for loader in rank):
                self.seen["reconnects"] += loader.stats().reconnects
                loader.close()

    def _first_kill(self) -> int:
        return 1 if self._store else max(1, self._order.steps // 10)

    def _reader(self, rank: int, world: int, worker: int, workers: int, state: str) -> Loader:
        order = self._order
        loader = self._cache.loader(
            global_batch_size=order.global_batch,
            seed=order.seed,
            shuffle=order.shuffle,
            clump=order.clump,
            window=order.window,
            tail=order.tail,
            filter=self._filter,
            split=self._split,
            prefetch_bytes=1 << 16,
            world=World(rank, world),
            worker=worker,
            workers=workers,
        )
        if state:
            loader.load_state_dict(json.loads(state))
        loader.set_epoch(self._number)
        return loader

    def _attempt(self, readers: list[list[Loader]], steps: range, kill_at: int, *, everything: bool) -> str:
        """Checks the steps and kills servers before one of them; returns the last state of a rank."""
        streams, state = [[iter(loader) for loader in rank] for rank in readers], ""
        if not steps:
            self._blow(everything)
        for step in steps:
            if step == kill_at:
                if self._store and everything:
                    assert self._cache.status()["state"] == "Loading"
                self._blow(everything)
                if self._store:
                    self._store.release()
            turn = step % len(readers[0])
            self._check(step, [next(rank[turn]) for rank in streams])
            state = json.dumps(readers[step % len(readers)][turn].state_dict())
            self.seen["steps"] += 1
        if steps.stop == self._order.steps:
            assert all(next(stream, None) is None for rank in streams for stream in rank), "a rank has more steps"
        return state

    def _blow(self, everything: bool) -> None:
        names = ["node-0", "node-1"]
        how: Outage = self._rng.choice(["kill", "kill", "stop", "freeze"])
        if everything:
            how = "kill"
        else:
            names = self._rng.choice([["head"], ["node-0"], ["node-1"], names, self._cluster.names])
        self._cluster.interrupt(names, self._rng.uniform(0, 1 if how == "freeze" else 0.3), how)
        self.seen[f"times {how}"] += len(names)

    def _check(self, step: int, batches: list[Batch]) -> None:
        ids = np.concatenate([batch.numpy()["id"] for batch in batches])
        want = self._selected[self._order.rows_of(range(step, step + 1), WHOLE)]
        assert np.array_equal(ids, want), (self._order, self._filter, self._split, step)
        for batch in batches:
            columns = batch.numpy()
            assert batch.step == step
            assert batch.num_rows == 0 or np.array_equal(columns["tokens"], tokens_of(columns["id"]))
            assert batch.arrow().column("text") == rows_of(columns["id"]).column("text")


def _selection(rows: int, rng: random.Random, number: int) -> tuple[str | None, Split | None, npt.NDArray[np.int64]]:
    """In every second schedule a filter and a split that leave most rows; and the rows that are left, in order."""
    ids = np.arange(rows)
    if number % 2 == 0:
        return None, None, ids
    low, high = rows // rng.randint(10, 20), rows - rows // rng.randint(10, 20)
    filtered = ids[(ids >= high) | (ids < low) | ~np.char.startswith(ids.astype(str), "7")]
    condition = f"id >= {high} OR id < {low} OR text NOT LIKE 'text of row 7%'"
    split = Split(of=20, start=rng.randint(0, 2), stop=20, seed=rng.getrandbits(64))
    first, last = (part * len(filtered) // split.of for part in (split.start, split.stop))
    order = Permutation(len(filtered), split.seed, 0) if len(filtered) else None
    return condition, split, filtered[[order.at(x) for x in range(first, last)]] if order else filtered


@pytest.mark.parametrize("columns", [None, ["text", "id"]])
def test_columns_and_types_over_the_wire(cluster: Cluster, connect: Connect, columns: list[str] | None) -> None:
    cache = connect(cluster.endpoint)
    loader = cache.loader(global_batch_size=1000, shuffle=False, columns=columns, world=World(0, 1))
    batch = next(iter(loader))
    want = rows_of(np.arange(1000))
    assert batch.arrow().equals(want.select(columns) if columns else want)
    loader.close()
