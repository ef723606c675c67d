# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Benchmark take: what a shuffled epoch from many data nodes costs as streams and by row numbers."""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from lake import Lake, Made
from server import Cache, Caches

import kubeflow_datacache.loader
from kubeflow_datacache import DataCache, Loader, World
from kubeflow_datacache.fetch.take_feed import takes

WAYS = {"streams": False, "row numbers": True}
COLUMNS, LENGTH = 9, 512  # int64 columns of a narrow row of 72 bytes, int32 tokens of a wide row of 2 KB


def table(lake: Lake, name: str, gigabytes: float) -> Made:
    """Writes a table of narrow or of wide rows, in row groups that a thousand data nodes can share."""
    random = np.random.default_rng(1)
    if name == "72 B":
        rows = int(gigabytes * 1e9 / 72)
        columns = {f"c{i}": pa.array(random.integers(0, 1 << 40, rows)) for i in range(COLUMNS)}
    else:
        rows = int(gigabytes * 1e9 / 2052)
        ends = pa.array(np.arange(0, (rows + 1) * LENGTH, LENGTH, dtype=np.int32))
        tokens = pa.array(random.integers(0, 50_000, rows * LENGTH, np.int32))
        columns = {"tokens": pa.ListArray.from_arrays(ends, tokens)}
    data = pa.table(columns)
    properties = {"write.parquet.row-group-limit": str(rows // 1000), "write.parquet.compression-codec": "uncompressed"}
    made = lake.create(f"t{COLUMNS if name == '72 B' else LENGTH}", data.schema, data, properties=properties)
    return Made(name, made.metadata_location)


def cpu_of(cache: Cache) -> float:
    """CPU seconds of the cache's process."""
    fields = Path(f"/proc/{cache.processes['local'].pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def read(loader: Loader, cache: Cache) -> tuple[float, float, float]:
    """Reads an epoch. Returns CPU seconds per GB of the server and of the client, and seconds until the first batch."""
    began, client, server, nbytes, first = time.perf_counter(), time.process_time(), cpu_of(cache), 0, 0.0
    for batch in loader:
        first = first or time.perf_counter() - began
        nbytes += batch.nbytes
    gigabytes = nbytes / 1e9
    return (cpu_of(cache) - server) / gigabytes, (time.process_time() - client) / gigabytes, first


def main() -> None:
    """Prints the measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", type=Path, required=True, help="the cacheserver binary")
    parser.add_argument("--nodes", default="1,4,16,64,250", help="numbers of data nodes")
    parser.add_argument("--gigabytes", type=float, default=0.5, help="size of the tables")
    parser.add_argument("--rounds", type=int, default=3, help="epochs each way, in turns; the best counts")
    arguments = parser.parse_args()
    print("CPU-s/GB of a shuffled epoch, in steps of 1024 rows: the least of", arguments.rounds, "epochs")
    print(f"{'rows':5} {'data nodes':>10} {'way':12} {'server':>7} {'client':>7} {'first batch':>12}")
    for name in ("72 B", "2 KB"):
        with tempfile.TemporaryDirectory() as folder:
            made = table(Lake(Path(folder)), name, arguments.gigabytes)
            for nodes in map(int, arguments.nodes.split(",")):
                measure(Caches(arguments.server, Path(folder) / f"logs-{nodes}"), made, nodes, arguments.rounds)


def measure(caches: Caches, made: Made, nodes: int, rounds: int) -> None:
    """Prints the measurements with one number of data nodes, and marks the way that loaders choose."""
    with contextlib.closing(caches):
        cache = caches.of(made, nodes=nodes)
        with DataCache(cache.endpoint) as client:
            loader = client.loader(global_batch_size=1024, world=World(0, 1))
            best: dict[str, list[float]] = {}
            for _ in range(rounds):
                for way, numbered in WAYS.items():
                    kubeflow_datacache.loader.takes = lambda *_, now=numbered: now
                    figures = read(loader, cache)
                    best[way] = [min(pair) for pair in zip(best.get(way, figures), figures, strict=True)]
            chosen = takes(nodes, {"72 B": 72.0, "2 KB": 2052.0}[made.name])
    for way, (server, own, first) in best.items():
        mark = "  chosen" if WAYS[way] == chosen else ""
        print(f"{made.name:5} {nodes:10} {way:12} {server:7.2f} {own:7.2f} {first:10.3f} s{mark}", flush=True)


if __name__ == "__main__":
    main()
