# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Prints how soon training starts while a cache loads from a slow store, as shares of the load without a reader.

The store answers at most four reads of row groups at once, each after 50 ms. Times are from the start of the cache's
process; a bar is a share of the load, and the load with a reader is a multiple of that without.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from server import Cache, Caches
from slow_store import SlowStore

from kubeflow_datacache import DataCache, World

GROUPS, ROWS, BYTES = 1000, 64, 512
CASES: dict[str, tuple[dict[str, Any], float]] = {
    "in order": ({"shuffle": False}, 0.15),
    "clump 64, window 16": ({"clump": ROWS, "window": 16}, 0.15),
    "all rows shuffled": ({}, 0.3),
}


@contextlib.contextmanager
def started(binary: Path, store: SlowStore, uri: str, folder: Path) -> Iterator[tuple[Cache, float]]:
    """A cache that begins to load, and when it was started."""
    begun = time.monotonic()
    cache = Caches(binary, folder).start(["--files", uri], nodes=1, env=store.environment())
    try:
        yield cache, begun
    finally:
        cache.stop()


def read(endpoint: str, begun: float, options: dict[str, Any]) -> tuple[float, float]:
    """Reads the first 100 steps; returns when the first and the last one came."""
    with DataCache(endpoint) as cache:
        batches = iter(cache.loader(global_batch_size=256, seed=1, world=World(0, 1), **options))
        next(batches)
        first = time.monotonic() - begun
        for _ in range(99):
            next(batches)
        return first, time.monotonic() - begun


def main() -> int:
    """Measures and prints; the exit code is 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", type=Path, required=True, help="the cacheserver binary")
    parser.add_argument("--milliseconds", type=int, default=50, help="time of a read of a row group")
    args = parser.parse_args()
    missed = False
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = SlowStore(folder, args.milliseconds / 1000)
        text = np.random.default_rng(1).bytes(GROUPS * ROWS * BYTES)
        cells = [text[i : i + BYTES] for i in range(0, len(text), BYTES)]
        uri = store.write("table.parquet", pa.table({"id": np.arange(GROUPS * ROWS), "text": cells}), ROWS)
        with store.served(), ThreadPoolExecutor() as pool:
            with started(args.server, store, uri, folder / "alone") as (cache, begun):
                cache.wait("Ready")
                load = time.monotonic() - begun
            print(f"{os.cpu_count()} CPUs; {GROUPS} row groups of {ROWS} rows, global batch 256: {load:.1f} s to load")
            print("order                 first batch      bar   step 100   load, times alone   bar")
            for number, (case, (options, bar)) in enumerate(CASES.items()):
                with started(args.server, store, uri, folder / f"case-{number}") as (cache, begun):
                    reading = pool.submit(read, cache.endpoint, begun, options)
                    cache.wait("Ready")
                    whole = time.monotonic() - begun
                    first, last = reading.result()
                passed = first <= bar * load and whole <= 1.05 * load
                missed |= not passed
                print(
                    f"{case:20}  {first / load:11.3f}  <= {bar:.2f}  {last / load:9.3f}  {whole / load:18.3f}"
                    f"  <= 1.05  {'pass' if passed else 'MISSED'}",
                    flush=True,
                )
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
