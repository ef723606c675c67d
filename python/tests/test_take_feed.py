# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Epochs that are read by row numbers: from many data nodes, the same batches as by streams, in the same order."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chance import Chance
from kit.deadline import limit
from lake import Lake, Made
from server import Cache, Caches
from wide import SCHEMA, rows_of

from kubeflow_datacache import DataCache, Loader, Split, World, mix
from kubeflow_datacache.fetch.take_feed import TakeFeed, TakeSource, takes
from kubeflow_datacache.monitoring.stage_timer import StageTimer
from kubeflow_datacache.stop import Stop

Connect = Callable[..., DataCache]
NODES, ROWS = 9, {"web": 2_003, "code": 1_501}


@pytest.fixture(scope="module")
def caches(server: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Cache]]:
    """Real caches of two tables, on nine data nodes each."""
    folder = tmp_path_factory.mktemp("takes")
    running = Caches(server, folder / "logs")
    tables = {name: Made(name, _table(folder / name, rows)) for name, rows in ROWS.items()}
    yield {name: running.of(table, nodes=NODES) for name, table in tables.items()}
    running.close()


def _table(folder: Path, rows: int) -> str:
    """Files of few rows, so that every data node gets some."""
    folder.mkdir()
    cuts = np.linspace(0, rows, 2 * NODES + 1).astype(int).tolist()
    parts = [pa.Table.from_batches([rows_of(np.arange(lo, hi))]) for lo, hi in itertools.pairwise(cuts)]
    return Lake(folder).create("wide", SCHEMA, parts).metadata_location


def test_which_epochs_are_read_by_row_numbers() -> None:
    assert [nodes for nodes in (1, 4, 7, 8, 9, 64, 1000) if takes(nodes, 72.0)] == [8, 9, 64, 1000]
    assert [nodes for nodes in (1, 8, 16, 48, 64, 1000) if takes(nodes, 2048.0)] == [64, 1000]
    assert not takes(1000, 150_000.0), "of large rows streams cost less from any number of nodes"
    assert not takes(64, 72.0, clump=64), "the rows of a clump are found at once"


class Fake:
    """A cache with a row a number on two data nodes; connections to the second one break when they are used first."""

    endpoint, retry_seconds, row_bytes, schema = "grpc://head:1", 10.0, 8.0, pa.schema([("row", pa.int64())])
    placement = SimpleNamespace(first=0, bounds=[(0, 5), (5, 10)])

    def __init__(self) -> None:
        self.cache = self
        self.endpoints = [SimpleNamespace(node=node, location=str(node), ticket=b"") for node in range(2)]
        self.broken = True
        self.on_request: Callable[[], None] = lambda: None

    def info(self, _stop: Stop) -> Fake:
        """The head's answer."""
        return self

    def forget(self) -> None:
        """Nothing is kept."""

    def exchange(self, location: str, _ticket: bytes) -> FakeExchange:
        """A connection to a data node."""
        return FakeExchange(self, location)


class FakeExchange:
    """A connection to a data node."""

    def __init__(self, of: Fake, node: str) -> None:
        self._of, self._node = of, node

    def write(self, batch: pa.RecordBatch) -> None:
        """Takes a request, or breaks."""
        if self._node == "1" and self._of.broken:
            self._of.broken = False
            raise OSError("the connection is broken")
        self._rows = batch
        self._of.on_request()

    def read(self) -> tuple[pa.RecordBatch, None]:
        """The rows that were asked for."""
        return self._rows, None

    def cancel(self) -> None:
        """Nothing blocks."""

    close = cancel


def test_a_run_whose_requests_could_not_be_sent_is_requested_again() -> None:
    fake = Fake()
    feed = TakeFeed(cast("TakeSource", fake), prefetch_bytes=1 << 20, stop=Stop(), timer=StageTimer())

    def want_more() -> None:
        fake.on_request = lambda: None
        feed.want(2, {1: np.array([5, 6])})

    fake.on_request = want_more  # so that both runs are under way when the connection for the second one breaks
    feed.want(2, {0: np.array([0, 1])})
    with ThreadPoolExecutor(1) as pool:
        try:
            for node, want in enumerate(([0, 1], [5, 6])):
                parts = pool.submit(lambda node=node: list(feed.take(node, 2))).result(limit())
                assert pa.Table.from_batches(parts)["row"].to_pylist() == want
        finally:
            feed.close()
    assert feed.reconnects == 1


@pytest.mark.parametrize("count", [2, pytest.param(6, marks=pytest.mark.night)])
@pytest.mark.parametrize("kind", ["table", "mixture"])
def test_batches_by_row_numbers_are_those_of_streams(
    caches: dict[str, Cache], connect: Connect, chance: Chance, monkeypatch: pytest.MonkeyPatch, kind: str, count: int
) -> None:
    parts = {name: connect(cache.endpoint) for name, cache in caches.items()}
    for number, rng in chance.schedules(count):
        make = _mixture(parts, rng) if kind == "mixture" else _loader(parts["web"], rng)
        numbered = number % 2 == 0
        state, done = None, 0
        for _ in range(3):  # from a state of one way, the other goes on; in each, both read the same
            monkeypatch.setattr("kubeflow_datacache.loader.takes", lambda *_, now=numbered: now)
            world = rng.randint(1, 5)
            ends = done + rng.randint(0, 6)
            one = _read(make, world, state, ends)
            monkeypatch.setattr("kubeflow_datacache.loader.takes", lambda *_, now=not numbered: now)
            other = _read(make, world, state, ends)
            assert one.keys() == other.keys(), (number, world, state)
            for step, batches in one.items():
                for a, b in zip(batches, other[step], strict=True):
                    assert a.equals(b), (number, world, state, step)
            loader = make(World(0, 1))
            if state is not None:
                loader.load_state_dict(json.loads(state))
            done = min(ends, loader.steps)
            state = json.dumps({**loader.state_dict(), "next_step": done})
            loader.close()
            numbered = not numbered


def _loader(cache: DataCache, rng: random.Random) -> Callable[[World], Loader]:
    options: dict[str, Any] = {
        "global_batch_size": rng.choice([1, 37, 128, 700]),
        "seed": rng.getrandbits(64),
        "clump": rng.choice([1, 1, 5]),
        "window": rng.choice([0, 0, 9]),
        "shuffle": rng.random() < 0.8,
        "tail": rng.choice(["drop", "keep", "pad"]),
        "filter": rng.choice([None, "text NOT LIKE 'text of row 1%'", "id < 700"]),
        "columns": rng.choice([None, ["text", "id"]]),
    }
    if options["shuffle"] and options["global_batch_size"] >= 64:
        options["order"] = rng.choice([1, 2])
    if rng.random() < 0.5:
        options["split"] = Split(
            of=7, start=rng.randint(0, 3), stop=7, seed=rng.getrandbits(64), shuffle=rng.random() < 0.7
        )
    print(options)
    return lambda world: cache.loader(**options, world=world)


def _mixture(parts: dict[str, DataCache], rng: random.Random) -> Callable[[World], Loader]:
    chosen: Any = {
        "web": (parts["web"].select(filter=rng.choice([None, "text NOT LIKE 'text of row 1%'"])), 0.7),
        "code": (parts["code"].select(split=rng.choice([None, Split(of=9, start=1, stop=8)])), 0.3),
    }
    options: Any = {
        "global_batch_size": 40,
        "seed": rng.getrandbits(64),
        "until": 2_000,
        "clump": rng.choice([1, 8]),
        **rng.choice([{"exact": "step"}, {"exact": "epoch"}, {"per": "batch"}]),
    }
    print(options)
    return lambda world: mix(chosen, **options, world=world)


def _read(make: Callable[[World], Loader], world: int, state: str | None, ends: int) -> dict[int, list[pa.RecordBatch]]:
    """The batches of all ranks, by step, from a state on to the step `ends` or the end of the epoch."""
    steps: dict[int, list[pa.RecordBatch]] = {}
    for rank in range(world):
        loader = make(World(rank, world))
        if state is not None:
            loader.seek(json.loads(state))
        for batch in loader:
            if batch.step >= ends:
                break
            steps.setdefault(batch.step, []).append(batch.arrow())
        loader.close()
    return steps


def test_many_data_nodes_are_read_by_row_numbers_and_the_head_is_asked_once(
    caches: dict[str, Cache], connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, asked = connect(caches["web"].endpoint), Counter[str]()
    ask = cache.get_flight_info

    def counted(request: Any, *args: Any) -> Any:
        asked.update([request["kind"]])
        return ask(request, *args)

    monkeypatch.setattr(cache, "get_flight_info", counted)
    loader = cache.loader(global_batch_size=100, columns=["id"], seed=5, world=World(0, 1))
    for _ in range(3):
        ids = [id for batch in loader for id in batch.numpy()["id"].tolist()]
        assert (len(ids), len(set(ids))) == (2_000, 2_000)
    assert asked == {"take": 2}, "once for the dataset, once for all epochs"
    whole = cache.loader(global_batch_size=100, world=World(0, 1))
    assert sum(batch.num_rows for batch in whole) == 2_000
    assert asked["epoch"] == 1, "of rows of 2 KB, nine streams cost less"


def test_rows_that_are_swept_are_not_read_by_number(
    server: Path, connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of rows larger than the memory: by number they are read more often from the disk."""
    table, rows = tmp_path / "table", 80_000
    table.mkdir()
    noise = np.random.default_rng(1).bytes(rows * 1000)
    text = pa.array([noise[at : at + 1000] for at in range(0, len(noise), 1000)])
    pq.write_table(pa.table({"id": np.arange(rows), "text": text}), table / "0.parquet", row_group_size=2_000)
    env = {"SPILL_DIR": str(tmp_path / "spill"), "MEMORY_LIMIT": "150Mi"}
    caches = Caches(server, tmp_path / "logs")
    try:
        cache = caches.start(["--files", str(table)], nodes=NODES, env=env)
        cache.wait("Ready")
        client, asked = connect(cache.endpoint), list[str]()
        ask = client.get_flight_info
        monkeypatch.setattr(
            client, "get_flight_info", lambda what, *more: asked.append(what["kind"]) or ask(what, *more)
        )
        loader = client.loader(global_batch_size=1_000, columns=["id"], seed=5, world=World(0, 1))
        assert sorted(id for batch in loader for id in batch.numpy()["id"].tolist()) == list(range(rows))
        assert "epoch" in asked
    finally:
        caches.close()
