# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Benchmark filters: what the first request with a filter costs, and epochs of selections beside the whole table."""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from client import Client, metadata
from lake import Lake, Made
from server import Cache, Caches

LENGTH = 512  # int32 tokens of a row
COLUMNS = 8  # int64 columns of a tabular row, besides the one to filter by
NODES = 2
SPLIT = {"seed": 1, "of": 100, "from": 0, "to": 90}


def tokens(rows: int) -> Iterator[pa.Table]:
    """Rows of tokens, and a random number from 0 to 99 to filter by."""
    r = np.random.default_rng(1)
    ends = np.arange(0, (rows + 1) * LENGTH, LENGTH, dtype=np.int32)
    values = pa.ListArray.from_arrays(ends, r.integers(0, 50_000, rows * LENGTH, np.int32))
    yield pa.table({"part": r.integers(0, 100, rows), "tokens": values})


def tabular(rows: int) -> Iterator[pa.Table]:
    """Rows of numbers, and a random number from 0 to 99 to filter by."""
    r = np.random.default_rng(1)
    for first in range(0, rows, 1 << 20):
        n = min(1 << 20, rows - first)
        numbers = {f"x{i}": r.integers(0, 1 << 20, n) for i in range(COLUMNS)}
        yield pa.table({"part": r.integers(0, 100, n), **numbers})


def cpu_of(cache: Cache) -> float:
    """CPU seconds of the cache's processes."""
    ticks = 0
    for process in cache.processes.values():
        ticks += sum(map(int, Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def read(
    client: Client, cache: Cache, columns: list[str], shuffle: bool, clump: int, selection: dict[str, Any]
) -> float:
    """Reads an epoch and returns the server's CPU seconds per GB."""
    info = client.command(
        kind="epoch", seed=1, epoch=0, shuffle=shuffle, clump=clump, global_batch=4096, tail="keep", rank=0, world=1,
        columns=columns, **selection,
    )  # fmt: skip
    began, nbytes = cpu_of(cache), 0
    for endpoint in info.endpoints:
        for chunk in client.node(endpoint).do_get(endpoint.ticket):
            nbytes += chunk.data.nbytes
    return (cpu_of(cache) - began) / (nbytes / 1e9)


def index(client: Client, cache: Cache, rows: int) -> None:
    """Prints what the first request with a filter costs, and a second one."""
    ask = functools.partial(client.command, kind="shard", index=0, total=1)
    ask()
    cpu, first, second = [], [], []
    for below in (50, 20, 1):
        before, began = cpu_of(cache), time.perf_counter()
        info = ask(filter=f"part < {below}")
        first.append(time.perf_counter() - began)
        cpu.append(cpu_of(cache) - before)
        assert metadata(info)["filtered_rows"] > 0
        for _ in range(20):
            began = time.perf_counter()
            ask(filter=f"part < {below}")
            second.append(time.perf_counter() - began)
    print(
        f"index of one int64 over {rows} rows: {max(cpu):.2f} CPU-s at most; "
        f"first answer after {max(first):.3f} s at most, a second after {1e3 * statistics.median(second):.2f} ms"
    )


def epochs(what: str, client: Client, cache: Cache, columns: list[str], rounds: int) -> None:
    """Prints the cost of epochs of selections beside that of the table, read in turns."""
    half: dict[str, Any] = {"filter": "part < 50"}
    kinds: dict[str, tuple[bool, int, dict[str, Any]]] = {
        "shuffled": (True, 1, {}),
        "shuffled, half of the rows by a filter": (True, 1, half),
        "shuffled, 1 in 100 rows by a filter": (True, 1, {"filter": "part = 7"}),
        "shuffled, 90 % by a split": (True, 1, {"split": SPLIT}),
        "shuffled, filter and split": (True, 1, {**half, "split": SPLIT}),
        "clumps of 64": (True, 64, {}),
        "clumps of 64, half of the rows by a filter": (True, 64, half),
        "in order": (False, 1, {}),
        "in order, half of the rows by a filter": (False, 1, half),
    }
    seen: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        for kind, (shuffle, clump, selection) in kinds.items():
            repeat = 20 if "1 in 100" in kind else 1
            seen[kind].append(
                statistics.mean(read(client, cache, columns, shuffle, clump, selection) for _ in range(repeat))
            )
    base = 0.0
    for kind, all_rounds in seen.items():
        median = statistics.median(all_rounds)
        base = base if kinds[kind][2] else median
        print(f"{what}, {kind}: {median:.3f} server CPU-s/GB, {median / base:.2f} of the whole table")


def main() -> None:
    """Prints the measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", type=Path, required=True, help="the cacheserver binary")
    parser.add_argument("--rounds", type=int, default=5, help="epochs of each kind")
    parser.add_argument(
        "--rows", type=int, default=11_000_000, help="rows of the tabular table; the other one has a 50th"
    )
    own = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        running = Caches(own.server.resolve(), folder / "logs")
        try:
            lake = Lake(folder)
            for what, made, rows, columns in (
                ("tabular", tabular, own.rows, [f"x{i}" for i in range(COLUMNS)]),
                ("tokens", tokens, own.rows // 50, ["tokens"]),
            ):
                parts = list(made(rows))
                table = Made(what, lake.create(what, parts[0].schema, parts).metadata_location)
                del parts
                cache = running.of(table, nodes=NODES)
                with cache.client() as client:
                    index(client, cache, rows)
                    epochs(what, client, cache, columns, own.rounds)
        finally:
            running.close()


if __name__ == "__main__":
    main()
