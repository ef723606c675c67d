# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Loaders of a cache that still loads: the same rows in the same order, early, and what a failed load leaves."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from kit.deadline import eventually
from order import Epoch as Oracle
from server import Cache, Caches

from kubeflow_datacache import CacheFailedError, DataCache, World, mix
from kubeflow_datacache.cache import Transport
from slow_store import SlowStore

Connect = Callable[..., DataCache]
Load = Callable[..., Cache]
ROWS, GROUP = 6_000, 100
NO_LIMITS: Mapping[str, str] = {}
IN_ORDER = Oracle(rows=ROWS, shuffle=False)
ALONE = World(0, 1)
LIMIT = 144 << 20


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SlowStore]:
    """A store in which the table of 60 row groups takes 3 s to load."""
    slow = SlowStore(tmp_path, 0.2)
    with slow.served():
        yield slow


def needed_last(order: Oracle, group: int) -> int:
    """The row group that is needed last in this order."""
    first_use = dict[int, int]()
    for at, row in enumerate(order.sequence()):
        first_use.setdefault(row // group, at)
    return max(first_use, key=lambda number: first_use[number])


@pytest.fixture
def load(store: SlowStore, server: Path, tmp_path: Path) -> Iterator[Load]:
    """A function that starts a cache, of two data nodes, of a table of so many rows as the order has.

    It does not end loading before store.release, as it gets no rows of the row group that the order needs last.
    """
    caches = Caches(server, tmp_path / "logs")

    def start(
        order: Oracle, width: int = 200, group: int = GROUP, nodes: int = 2, limits: Mapping[str, str] = NO_LIMITS
    ) -> Cache:
        text = np.random.default_rng(1).bytes(width * order.rows)  # random, so that compression does not shrink it
        cells = [text[at : at + width] for at in range(0, len(text), width)]
        uri = store.write("table.parquet", pa.table({"id": np.arange(order.rows), "text": cells}), group)
        store.hold("table.parquet", needed_last(order, group))
        return caches.start(["--files", uri], nodes=nodes, env={**store.environment(), **limits})

    yield start
    caches.close()


@pytest.mark.parametrize("transport", ["h2", pytest.param("grpc", marks=pytest.mark.night)])
@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": False, "global_batch_size": 100},
        {"global_batch_size": 16},
        {"clump": 100, "window": 4, "global_batch_size": 100, "tail": "pad"},
    ],
    ids=["in order", "shuffled", "windows"],
)
def test_rows_are_those_of_a_loaded_cache(
    store: SlowStore, load: Load, connect: Connect, options: dict[str, Any], transport: Transport
) -> None:
    order = {name: value for name, value in options.items() if name != "global_batch_size"}
    order |= {
        "rows": ROWS,
        "seed": 3,
        "global_batch": options["global_batch_size"],
        "tail": options.get("tail", "drop"),
    }
    cache = connect(load(Oracle(**order)).endpoint, transport=transport)
    for rank in range(2):
        loader = cache.loader(**options, seed=3, world=World(rank, 2))
        batches = iter(loader)
        first = next(batches)
        if not rank:
            status = cache.status()
            assert status["counted"]
            assert status["state"] == "Loading"
            store.release()
        got = [batch.numpy()["id"].tolist() for batch in (first, *batches)]
        assert got == [step.rows for step in Oracle(**order, rank=rank, world=2).share()]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"shuffle": False}, marks=pytest.mark.night),
        pytest.param({}, marks=pytest.mark.night),
        {"clump": 500, "window": 4},
    ],
    ids=["in order", "shuffled", "windows"],
)
def test_rows_of_spill_files_while_they_are_written(
    store: SlowStore, load: Load, connect: Connect, tmp_path: Path, options: dict[str, Any]
) -> None:
    """A table of 96 MB with a memory that has room for half of it, and spill files."""
    order = Oracle(**options, rows=24_000, seed=3, global_batch=64, rank=0, world=1)
    limits = {"SPILL_DIR": str(tmp_path / "spill"), "MEMORY_LIMIT": str(LIMIT)}
    served = load(order, width=4_000, group=500, nodes=1, limits=limits)
    cache = connect(served.endpoint)
    loader = cache.loader(**options, global_batch_size=64, seed=3, world=ALONE)
    batches = iter(loader)
    first = next(batches)
    status = cache.status()
    assert status["counted"]
    assert status["state"] == "Loading"
    store.release()
    got = [batch.arrow() for batch in (first, *batches)]
    want = [batch.arrow() for batch in cache.loader(**options, global_batch_size=64, seed=3, world=ALONE)]
    assert got == want
    ids = [id for batch in got for id in batch.column("id").to_pylist()]
    assert ids == [row for step in order.share() for row in step.rows]
    spill = eventually("the spill files in /status", lambda: cache.status()["nodes"][0].get("spill"))
    assert spill["pinned"] < spill["bytes"], "all rows fit in memory"
    status_of = Path(f"/proc/{served.processes['local'].pid}/status").read_text()
    peak = next(int(line.split()[1]) << 10 for line in status_of.splitlines() if line.startswith("VmHWM"))
    assert peak < LIMIT, f"the process had {peak} bytes in memory"


def test_tables_and_mixtures_of_a_cache_that_loads(store: SlowStore, load: Load, connect: Connect) -> None:
    cache = connect(load(IN_ORDER).endpoint)
    assert cache.table()[[17, 3]].column("id").to_pylist() == [17, 3]
    assert cache.status()["state"] == "Loading"
    store.release()
    options: dict[str, Any] = {"seed": 1, "until": 400, "global_batch_size": 40, "world": ALONE}
    early, late = (mix({"a": (cache, 0.5), "b": (cache, 0.5)}, early=early, **options) for early in (True, False))
    got = [batch.arrow() for batch in early]
    assert got == [batch.arrow() for batch in late]
    assert cache.status()["state"] == "Ready"


def test_a_loader_may_wait_until_all_rows_are_loaded(store: SlowStore, load: Load, connect: Connect) -> None:
    cache = connect(load(IN_ORDER).endpoint)
    store.release()
    loader = cache.loader(global_batch_size=100, shuffle=False, early=False, world=ALONE)
    assert next(iter(loader)).num_rows == 100
    assert cache.status()["state"] == "Ready"


def test_a_failed_load_leaves_the_checkpoint(
    store: SlowStore, load: Load, server: Path, connect: Connect, tmp_path: Path
) -> None:
    loader = connect(load(IN_ORDER).endpoint).loader(global_batch_size=100, shuffle=False, world=ALONE)
    seen, states = list[int](), list[str]()
    batches = iter(loader)

    def read_rest() -> None:
        for batch in batches:
            seen.extend(batch.numpy()["id"].tolist())
            states.append(json.dumps(loader.state_dict()))
            if len(seen) == 300:
                store.broken = True
                store.release()

    with pytest.raises(CacheFailedError, match=r"the cache failed: .*403"):
        read_rest()
    store.broken, store.seconds = False, 0.0
    again = Caches(server, tmp_path / "again").start(["--files", "s3://slow/table.parquet"], env=store.environment())
    loader = connect(again.endpoint).loader(global_batch_size=100, shuffle=False, world=ALONE)
    loader.load_state_dict(json.loads(states[-1]))
    seen += [id for batch in loader for id in batch.numpy()["id"].tolist()]
    again.stop()
    assert seen == list(range(ROWS))
