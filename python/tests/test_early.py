# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Loaders of a cache that still loads: the same rows in the same order, early, and what a failed load leaves."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from order import Epoch as Oracle
from server import Cache, Caches

from kubeflow_datacache import CacheFailedError, DataCache, World, mix
from kubeflow_datacache.cache import Transport
from slow_store import SlowStore

Connect = Callable[..., DataCache]
ROWS, GROUP = 6_000, 100
ALONE = World(0, 1)
LIMIT = 144 << 20


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SlowStore]:
    """A store in which the table of 60 row groups takes 3 s to load."""
    slow = SlowStore(tmp_path, 0.2)
    with slow.served():
        yield slow


@pytest.fixture
def loading(store: SlowStore, server: Path, tmp_path: Path) -> Iterator[Cache]:
    """A cache that begins to load the table on two data nodes."""
    text = np.random.default_rng(1).bytes(200 * ROWS)  # not to be compressed
    rows = pa.table({"id": np.arange(ROWS), "text": [text[200 * i : 200 * i + 200] for i in range(ROWS)]})
    uri = store.write("table.parquet", rows, GROUP)
    cache = Caches(server, tmp_path / "logs").start(["--files", uri], env=store.environment())
    yield cache
    cache.stop()


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
    loading: Cache, connect: Connect, options: dict[str, Any], transport: Transport
) -> None:
    cache = connect(loading.endpoint, transport=transport)
    order = {name: value for name, value in options.items() if name != "global_batch_size"}
    order |= {
        "rows": ROWS,
        "seed": 3,
        "global_batch": options["global_batch_size"],
        "tail": options.get("tail", "drop"),
    }
    for rank in range(2):
        loader = cache.loader(**options, seed=3, world=World(rank, 2))
        batches = iter(loader)
        first = next(batches)
        if not rank:
            status = cache.status()
            assert status["counted"]
            assert status["state"] == "Loading", "the first batch came after the load"
            assert status["splits"]["done"] < 40
        got = [batch.numpy()["id"].tolist() for batch in (first, *batches)]
        assert got == [step.rows for step in Oracle(**order, rank=rank, world=2).share()]


@pytest.fixture
def wide(store: SlowStore, server: Path, tmp_path: Path) -> Iterator[Cache]:
    """A cache that begins to load a table of 96 MB with a memory that has room for half of it, and spill files."""
    count = 24_000
    text = np.random.default_rng(2).bytes(4_000 * count)  # not to be compressed
    rows = pa.table({"id": np.arange(count), "text": [text[4_000 * i : 4_000 * i + 4_000] for i in range(count)]})
    uri = store.write("wide.parquet", rows, 500)
    limits = {"SPILL_DIR": str(tmp_path / "spill"), "MEMORY_LIMIT": str(LIMIT)}
    cache = Caches(server, tmp_path / "logs").start(["--files", uri], nodes=1, env=store.environment() | limits)
    yield cache
    cache.stop()


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"shuffle": False}, marks=pytest.mark.night),
        pytest.param({}, marks=pytest.mark.night),
        {"clump": 500, "window": 4},
    ],
    ids=["in order", "shuffled", "windows"],
)
def test_rows_of_spill_files_while_they_are_written(wide: Cache, connect: Connect, options: dict[str, Any]) -> None:
    cache = connect(wide.endpoint)
    loader = cache.loader(**options, global_batch_size=64, seed=3, world=ALONE)
    batches = iter(loader)
    first = next(batches)
    status = cache.status()
    assert status["counted"]
    assert status["state"] == "Loading", "the first batch came after the load"
    got = [batch.arrow() for batch in (first, *batches)]
    want = [batch.arrow() for batch in cache.loader(**options, global_batch_size=64, seed=3, world=ALONE)]
    assert got == want
    ids = [id for batch in got for id in batch.column("id").to_pylist()]
    order = Oracle(**options, rows=24_000, seed=3, global_batch=64, rank=0, world=1)
    assert ids == [row for step in order.share() for row in step.rows]
    while "spill" not in cache.status()["nodes"][0]:  # reported once a second
        time.sleep(0.1)
    spill = cache.status()["nodes"][0]["spill"]
    assert spill["pinned"] < spill["bytes"], "all rows fit in memory"
    status_of = Path(f"/proc/{wide.processes['local'].pid}/status").read_text()
    peak = next(int(line.split()[1]) << 10 for line in status_of.splitlines() if line.startswith("VmHWM"))
    assert peak < LIMIT, f"the process had {peak} bytes in memory"


def test_tables_and_mixtures_of_a_cache_that_loads(loading: Cache, connect: Connect) -> None:
    cache = connect(loading.endpoint)
    assert cache.table()[[17, 3]].column("id").to_pylist() == [17, 3]
    assert cache.status()["state"] == "Loading"
    options: dict[str, Any] = {"seed": 1, "until": 400, "global_batch_size": 40, "world": ALONE}
    early, late = (mix({"a": (cache, 0.5), "b": (cache, 0.5)}, early=early, **options) for early in (True, False))
    got = [batch.arrow() for batch in early]
    assert got == [batch.arrow() for batch in late]
    assert cache.status()["state"] == "Ready"


def test_a_loader_may_wait_until_all_rows_are_loaded(loading: Cache, connect: Connect) -> None:
    cache = connect(loading.endpoint)
    loader = cache.loader(global_batch_size=100, shuffle=False, early=False, world=ALONE)
    assert next(iter(loader)).num_rows == 100
    assert cache.status()["state"] == "Ready"


def test_a_failed_load_leaves_the_checkpoint(
    store: SlowStore, loading: Cache, server: Path, connect: Connect, tmp_path: Path
) -> None:
    loader = connect(loading.endpoint).loader(global_batch_size=100, shuffle=False, world=ALONE)
    seen, states = list[int](), list[str]()
    batches = iter(loader)

    def read_rest() -> None:
        for batch in batches:
            seen.extend(batch.numpy()["id"].tolist())
            states.append(json.dumps(loader.state_dict()))
            store.broken = len(seen) >= 300

    begun = time.monotonic()
    with pytest.raises(CacheFailedError, match=r"the cache failed: .*403"):
        read_rest()
    assert time.monotonic() - begun < 60
    store.broken, store.seconds = False, 0.0
    again = Caches(server, tmp_path / "again").start(["--files", "s3://slow/table.parquet"], env=store.environment())
    loader = connect(again.endpoint).loader(global_batch_size=100, shuffle=False, world=ALONE)
    loader.load_state_dict(json.loads(states[-1]))
    seen += [id for batch in loader for id in batch.numpy()["id"].tolist()]
    again.stop()
    assert seen == list(range(ROWS))
