# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""make bench-spill: epochs of a table larger than the memory, beside the same table in memory."""

from __future__ import annotations

import argparse
import contextlib
import mmap
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
from client import Client
from narrow import tokens
from server import Cache, Caches
from take import cpu_of

from benchlib.memory import Group

_FILES, _PIECE = 8, 4 << 20
_CPU = 1.2  # bar of CPU-s/GB of shuffled rows with half of their bytes as memory
_FRACTIONS = "0,1,0.5,0.25"
_ROOM = 256 << 20  # for the process, decoding, reading and clients


def disk(folder: Path, size: int) -> float:
    """Bytes a second of reads of 4 MiB past the page cache, of the files in a folder."""
    buffer = mmap.mmap(-1, _PIECE)
    done, began = 0, time.monotonic()
    for path in sorted(folder.rglob("*.rows")):
        file = os.open(path, os.O_RDONLY | os.O_DIRECT)
        for at in range(0, path.stat().st_size, _PIECE):
            done += os.preadv(file, [buffer], at)
        os.close(file)
        if done >= size:
            break
    return done / (time.monotonic() - began)


def metric(cache: Cache, name: str) -> float:
    """The value of a metric without labels."""
    lines = cache.get("/metrics")[1].splitlines()
    return next((float(line.split()[1]) for line in lines if line.startswith(f"datacache_{name} ")), 0.0)


def resident(cache: Cache) -> int:
    """The greatest resident memory that the process has had."""
    status = Path(f"/proc/{cache.processes['local'].pid}/status").read_text()
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM"))


def epoch(cache: Cache, number: int, shuffle: bool) -> dict[str, float]:
    """Reads an epoch and returns what it cost."""
    client, cpu, read = Client(cache.endpoint), cpu_of(cache), metric(cache, "spill_read_bytes_total")
    began, nbytes, first = time.monotonic(), 0, 0.0
    info = client.command(
        kind="epoch", seed=1, epoch=number, shuffle=shuffle, clump=1, global_batch=4096, tail="keep", rank=0, world=1
    )
    for endpoint in info.endpoints:
        for chunk in client.node(endpoint).do_get(endpoint.ticket):
            first = first or time.monotonic() - began
            nbytes += chunk.data.nbytes
    seconds, cpu = time.monotonic() - began, cpu_of(cache) - cpu
    read = metric(cache, "spill_read_bytes_total") - read
    return {"first": first, "speed": nbytes / seconds, "cpu": cpu / nbytes * 1e9, "read": read}


def measure(
    caches: Caches, scratch: Path, stored: int, fraction: float | None, epochs: int, orders: Sequence[bool]
) -> bool:
    """Prints what a fraction of the stored bytes as memory costs. Returns whether a bar is missed."""
    env, where, limit = {}, "memory", 0
    if fraction is not None:
        limit = int(stored * fraction) + _ROOM
        env, where = {"SPILL_DIR": str(scratch / "spill"), "MEMORY_LIMIT": str(limit)}, f"D x {fraction:g}"
    with contextlib.ExitStack() as stack:
        group = stack.enter_context(Group(limit)) if limit else None
        began = time.monotonic()
        cache = caches.start(["--files", str(scratch / "table")], nodes=1, env=env)
        stack.callback(cache.stop)
        if group:  # in which the kernel ends it if it needs more
            Path(group.processes).write_text(str(cache.processes["local"].pid))
        return read(cache, scratch, stored, where, limit, began, epochs, orders)


def read(
    cache: Cache,
    scratch: Path,
    stored: int,
    where: str,
    limit: int,
    began: float,
    epochs: int,
    orders: Sequence[bool],
) -> bool:
    """Reads epochs of a cache that was started, and prints what they cost. Returns whether a bar is missed."""
    cache.wait("Ready", limit=3600)
    load, cpu = time.monotonic() - began, cpu_of(cache) / stored * 1e9
    speed = disk(scratch / "spill", min(stored, 4 << 30)) / 1e6 if limit else 0.0
    print(
        f"{where:8} load {load:5.1f} s, {cpu:5.2f} CPU-s/GB; disk {speed:.0f} MB/s; limit {limit / 1e6:.0f} MB",
        flush=True,
    )
    missed = False
    for shuffle in orders:
        for number in range(epochs):
            cost = epoch(cache, number, shuffle)
            print(
                f"{where:8} {'shuffled' if shuffle else 'in order'} epoch {number}: first batch {cost['first']:5.2f} s,"
                f" {cost['speed'] / 1e6:5.0f} MB/s, {cost['cpu']:5.2f} CPU-s/GB, read {cost['read'] / stored:5.2f} D,"
                f" resident {resident(cache) / 1e6:.0f} MB",
                flush=True,
            )
            missed |= shuffle and where == "D x 0.5" and number > 0 and cost["cpu"] > _CPU
            missed |= 0 < limit < resident(cache)
    return missed


def main() -> None:
    """Prints the measurements. Ends with 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", type=Path, required=True, help="the cacheserver binary")
    parser.add_argument("--gigabytes", type=float, default=2.0, help="Arrow bytes, of which half are stored")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument(
        "--fractions", default=_FRACTIONS, help="limits of memory, of the stored bytes; 0: none, without files"
    )
    parser.add_argument("--shuffled", action="store_true", help="shuffled epochs alone")
    parser.add_argument("--whole", action="store_true", help="integers need all their bytes")
    parser.add_argument("--folder", type=Path, help="where table and rows are (default: that of temporary files)")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(dir=arguments.folder) as folder,
        contextlib.closing(Caches(arguments.server.resolve(), Path(folder) / "logs")) as caches,
    ):
        table, rows = Path(folder) / "table", int(arguments.gigabytes * 1e11 / tokens(100, 0, True).nbytes / _FILES)
        table.mkdir()
        for i in range(_FILES):
            part = tokens(rows, i, arguments.whole)
            pq.write_table(part, table / f"{i}.parquet", compression="zstd", row_group_size=1 << 14)
        env = {"SPILL_DIR": str(Path(folder) / "spill"), "MEMORY_LIMIT": "1GiB"}
        cache = caches.start(["--files", str(table)], nodes=1, env=env)
        stored = cache.wait("Ready", limit=3600)["bytes"]
        cache.stop()
        print(f"{rows * _FILES} rows, {stored / 1e9:.2f} GB stored", flush=True)
        fractions = [float(word) or None for word in arguments.fractions.split(",")]
        orders = (True,) if arguments.shuffled else (True, False)
        missed = [measure(caches, Path(folder), stored, each, arguments.epochs, orders) for each in fractions]
    raise SystemExit(any(missed))


if __name__ == "__main__":
    main()
