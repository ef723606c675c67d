# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Benchmark mix: what a mixture of three tables costs beside one table of as many rows, and how soon it starts."""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from lake import Lake, Made
from server import Cache, Caches

from kubeflow_datacache import DataCache, Loader, World, mix
from kubeflow_datacache.order.epoch import Share
from kubeflow_datacache.order.shares import Shares

ROWS, LENGTH, BATCH = 60_000, 512, 1024  # rows of all tables, int32 tokens of a row, global batch
PARTS = ("a", "b", "c")
NODES = 2  # data nodes of a part


def table(lake: Lake, name: str, rows: int) -> Made:
    """Writes a table of random tokens."""
    schema = pa.schema([("tokens", pa.list_(pa.int32()))])
    ends = np.arange(0, (rows + 1) * LENGTH, LENGTH, dtype=np.int32)
    tokens = np.random.default_rng(1).integers(0, 50_000, rows * LENGTH, np.int32)
    column = pa.ListArray.from_arrays(ends, tokens)
    return Made(name, lake.create(name, schema, pa.table([column], schema=schema)).metadata_location)


def cpu_of(caches: list[Cache]) -> float:
    """CPU seconds of the caches' processes."""
    ticks = 0
    for cache in caches:
        for process in cache.processes.values():
            ticks += sum(map(int, Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def read(loader: Loader, caches: list[Cache]) -> dict[str, float]:
    """Reads an epoch. Returns CPU seconds per GB of the client and of the servers, and GB/s."""
    began, client, servers, nbytes = time.perf_counter(), time.process_time(), cpu_of(caches), 0
    for batch in loader:
        nbytes += batch.nbytes
        batch.numpy()
    seconds, gigabytes = time.perf_counter() - began, nbytes / 1e9
    return {
        "client CPU-s/GB": (time.process_time() - client) / gigabytes,
        "server CPU-s/GB": (cpu_of(caches) - servers) / gigabytes,
        "GB/s": gigabytes / seconds,
    }


def milliseconds(call: Callable[[], Any]) -> float:
    """The time of one call."""
    began = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - began)


def start(exact: Any) -> None:
    """The order of a mixture of 10^12 rows, and the rows of its first step."""
    proportions = {"web": (Fraction(7, 10),), "code": (Fraction(3, 10),)}
    shares = Shares(proportions=proportions, phases=(), exact=exact, per="row", until=BATCH * 10**9)
    order = shares.order([10**12, 10**9], seed=1, shuffle=True, clump=1, global_batch=BATCH, tail="drop")
    order.rows_of(range(1), Share())


def resume(loader: Loader, state: dict[str, Any]) -> None:
    """Loads a state and reads the next batch."""
    loader.load_state_dict(state)
    next(iter(loader))


def main() -> None:
    """Prints the measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", type=Path, required=True, help="the cacheserver binary")
    parser.add_argument("--rounds", type=int, default=5, help="epochs of each loader")
    own = parser.parse_args()
    for exact in ("epoch", "step"):
        times = [milliseconds(functools.partial(start, exact)) for _ in range(9)]
        print(f"start at 10^12 rows, exact per {exact}: at most {max(times):.1f} ms")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        running = Caches(own.server.resolve(), folder / "logs")
        try:
            lake = Lake(folder)
            made = table(lake, "whole", ROWS)
            wholes = [running.of(made, nodes=nodes) for nodes in (NODES, len(PARTS) * NODES)]
            thirds = [running.of(table(lake, part, ROWS // len(PARTS)), nodes=NODES) for part in PARTS]
            compare(wholes, thirds, own.rounds)
        finally:
            running.close()


def compare(wholes: list[Cache], thirds: list[Cache], rounds: int) -> None:
    """Reads the table, on as many data nodes as a part has and as all parts have, and the mixture, in turns."""
    options: dict[str, Any] = {"global_batch_size": BATCH, "seed": 1, "world": World(0, 1)}
    with contextlib.ExitStack() as opened:
        few, many, *three = [opened.enter_context(DataCache(cache.endpoint)) for cache in (*wholes, *thirds)]
        parts = {name: (cache, 1.0) for name, cache in zip(PARTS, three, strict=True)}
        loaders: dict[str, tuple[Loader, list[Cache]]] = {
            f"one table on {NODES} nodes": (few.loader(**options), wholes[:1]),
            f"one table on {len(PARTS) * NODES} nodes": (many.loader(**options), wholes[1:]),
            f"three tables on {NODES} nodes each, exact per epoch": (mix(parts, **options), thirds),
            f"three tables on {NODES} nodes each, exact per step": (mix(parts, exact="step", **options), thirds),
        }
        seen: dict[str, list[dict[str, float]]] = {name: [] for name in loaders}
        for _ in range(rounds):
            for name, (loader, caches) in loaders.items():
                seen[name].append(read(loader, caches))
        for name, all_rounds in seen.items():
            medians = {what: statistics.median(each[what] for each in all_rounds) for what in all_rounds[0]}
            print(f"{name}: {', '.join(f'{value:.3f} {what}' for what, value in medians.items())}")
        for name, (loader, _) in loaders.items():
            state = {**loader.state_dict(), "epoch": 5, "next_step": loader.steps // 2}
            times = [milliseconds(functools.partial(resume, loader, state)) for _ in range(9)]
            print(f"resume of {name}: {statistics.median(times):.1f} ms to the first batch")


if __name__ == "__main__":
    main()
