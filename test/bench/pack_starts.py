# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""What it costs to start and to resume an epoch of packs, beside one of rows, for tables of more and more rows."""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from lake import Lake, Made
from server import Cache, Caches

from kubeflow_datacache import DataCache, Loader, Pack, World

TOKENS, PACKS, MOST = 512, 128, 8  # of a pack, of a step; the most tokens of a row
ROWS = TOKENS * PACKS * 2 // (MOST + 1)  # a step of as many rows
ROUNDS = 5
Make = Callable[[], Loader]


def seconds_of(make: Make, state: dict[str, Any] | None) -> float:
    """Seconds from a new loader to its first batch."""
    began = time.perf_counter()
    with contextlib.closing(make()) as loader:
        if state is not None:
            loader.load_state_dict(state)
        next(iter(loader))
        return time.perf_counter() - began


def half_way(make: Make, fields: dict[str, Any], rows: int) -> dict[str, Any]:
    """A state from the middle of an epoch."""
    with contextlib.closing(make()) as loader:
        state = loader.state_dict()
    if "pack" in state:
        return {**state, "pack": {**state["pack"], "position": rows // 2, "steps": rows // 2 // ROWS}}
    return {**state, **fields}


def measure(cache: Cache, rows: int) -> None:
    """Prints milliseconds to the first batch."""
    with DataCache(cache.endpoint) as client:
        world = World(0, 1)
        makes: dict[str, Make] = {
            "rows": lambda: client.loader(global_batch_size=ROWS, seed=1, world=world),
            "packs": lambda: client.loader(pack=Pack("x", TOKENS, PACKS), seed=1, world=world),
        }
        makes["rows"]().close()
        first = {name: seconds_of(make, None) for name, make in makes.items()}
        state = {name: half_way(make, {"next_step": rows // 2 // ROWS}, rows) for name, make in makes.items()}
        found: dict[tuple[str, str], list[float]] = {}
        for _ in range(ROUNDS):
            for name, make in makes.items():
                found.setdefault(("start", name), []).append(seconds_of(make, None))
                found.setdefault(("resume", name), []).append(seconds_of(make, state[name]))
    print(f"{rows:9} rows: first ever {first['rows'] * 1e3:.0f} ms, {first['packs'] * 1e3:.0f} with packs", end="")
    for what in ("start", "resume"):
        plain, packed = (statistics.median(found[what, name]) for name in makes)
        print(f"; {what} {plain * 1e3:.0f}, {packed * 1e3:.0f}: {packed / plain:.2f}", end="")
    print(flush=True)


def starts(server: Path, sizes: list[int]) -> None:
    """Prints what starts and resumes cost."""
    print(f"milliseconds to the first batch of {ROWS} rows, of rows and of packs, medians of {ROUNDS}; the bar is 2")
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(Caches(server, Path(folder), keep=1)) as caches:
        for rows in sizes:
            lengths = np.random.default_rng(1).integers(1, MOST + 1, rows)
            ends = pa.array(np.append(0, np.cumsum(lengths)).astype(np.int32))
            data = pa.table({"x": pa.ListArray.from_arrays(ends, pa.array(np.zeros(int(lengths.sum()), np.int32)))})
            lake = Path(folder) / str(rows)
            lake.mkdir()
            made = Lake(lake).create("t", data.schema, data)
            measure(caches.of(Made(str(rows), made.metadata_location)), rows)
