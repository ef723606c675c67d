# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Benchmark put: what it costs to put rows into a cache, beside a C++ server that keeps them and beside a table."""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as fl
from lake import Lake
from narrow import tabular, tokens
from server import Cache, Caches, s3_environment
from stores import BUCKET, minio

from benchlib.process import cpu_seconds, memory_bytes
from kubeflow_datacache import DataCache, Put, World, put

_CPU, _RATIO, _ROOM, _STREAM = 0.9, 1.5, 1.1, 8 << 20  # bars: CPU-s/GB, of the C++ server's, of the bytes, a stream
_PUBLISH, _PARTS, _FIRST, _EPOCH = 1.0, 10_000, 0.4, 1.03
_PIECE, _IMAGE = 2 << 20, 100_000  # bytes of a message, for both servers; of an image


def images(rows: int, seed: int, whole: bool) -> pa.Table:
    """Rows with bytes that don't compress, and a label."""
    random = np.random.default_rng(seed + whole)
    return pa.table({"image": [random.bytes(_IMAGE) for _ in range(rows)], "label": np.arange(rows)})


_SHAPES: dict[str, Callable[[int, int, bool], pa.Table]] = {"tokens": tokens, "tabular": tabular, "images": images}


class Keeper(fl.FlightServerBase):
    """The reference: pyarrow's C++ server, which keeps the tables that it receives."""

    kept: list[pa.Table]

    def do_put(self, context: Any, descriptor: Any, reader: fl.MetadataRecordBatchReader, writer: Any) -> None:
        self.kept.append(reader.read_all())


def keep() -> None:
    """Runs the reference until its standard input ends."""
    server = Keeper("grpc://127.0.0.1:0")
    server.kept = []
    print(server.port, flush=True)
    sys.stdin.read()


@dataclass(frozen=True)
class Writer:
    """One writer: makes its rows, waits for all others, sends them, and reports its receipt and what it took."""

    shape: str
    rows: int
    part: int
    target: str | Put

    def run(self, start: Any, done: Any) -> None:
        """Runs in a process of its own."""
        table = _SHAPES[self.shape](self.rows, self.part, False)
        pieces = table.to_batches(max(1, _PIECE * table.num_rows // table.nbytes))
        start.wait()
        receipt, cpu = "", time.process_time()
        if isinstance(self.target, Put):
            receipt = self.target.send(self.part, lambda: pieces)
        else:
            writer, _ = fl.connect(self.target).do_put(fl.FlightDescriptor.for_path("t"), table.schema)
            for piece in pieces:
                writer.write_batch(piece)
            writer.close()
        done.put((receipt, table.nbytes, time.process_time() - cpu))


@dataclass(frozen=True)
class Cost:
    """What it took to put rows: CPU-s/GB of server and writers, seconds, bytes, and the server's additional memory."""

    server: float
    client: float
    wall: float
    nbytes: int
    peak: int


def send(shape: str, writers: int, rows: int, process: int, target: str | Put) -> Cost:
    """Lets writers put rows at the same time."""
    context = multiprocessing.get_context("spawn")
    start, done = context.Barrier(writers + 1), context.SimpleQueue()
    tasks = [Writer(shape, rows // writers, part, target) for part in range(writers)]
    workers = [context.Process(target=task.run, args=(start, done)) for task in tasks]
    for worker in workers:
        worker.start()
    start.wait()
    resident, cpu, began = memory_bytes(process, "VmRSS"), cpu_seconds(process), time.monotonic()
    results = [done.get() for _ in workers]
    if isinstance(target, Put):
        target.publish([receipt for receipt, _, _ in results])
    cpu, wall, peak = cpu_seconds(process) - cpu, time.monotonic() - began, memory_bytes(process, "VmHWM") - resident
    for worker in workers:
        worker.join()
    nbytes = sum(size for _, size, _ in results)
    return Cost(cpu / nbytes * 1e9, sum(spent for _, _, spent in results) / nbytes * 1e9, wall, nbytes, peak)


@contextlib.contextmanager
def started(caches: Caches, *flags: str) -> Iterator[tuple[Cache, DataCache]]:
    """A cache of one data node without a table."""
    cache = caches.start(["--puts", *flags], nodes=1)
    try:
        cache.wait("Ready")
        with DataCache(cache.endpoint) as client:
            yield cache, client
    finally:
        cache.stop()


def to_cache(caches: Caches, shape: str, writers: int, rows: int, profile: int) -> Cost:
    """Puts rows into a cache. With profile, keeps one of so many seconds."""
    with started(caches, *(["--profiles"] if profile else [])) as (cache, client), ThreadPoolExecutor() as pool:
        goal = Put.begin(client, "rows", _SHAPES[shape](1, 0, False).schema, parts=writers)
        if not profile:
            return send(shape, writers, rows, cache.processes["local"].pid, goal)
        url = f"{cache.http}/debug/pprof/profile?seconds={profile}"
        body = pool.submit(lambda: urllib.request.urlopen(url).read())
        cost = send(shape, writers, rows, cache.processes["local"].pid, goal)
        Path(f"put-{shape}-{writers}.pprof").write_bytes(body.result())
        return cost


def to_keeper(shape: str, writers: int, rows: int) -> Cost:
    """Puts rows into the reference."""
    command = [sys.executable, __file__, "--keep"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            return send(shape, writers, rows, process.pid, f"grpc://127.0.0.1:{process.stdout.readline().strip()}")
        finally:
            process.kill()


def streams(caches: Caches, own: argparse.Namespace) -> bool:
    """Prints what writers cost. Returns whether a bar is missed."""
    missed = False
    print("rows     writers  server  C++ server  times  writer  its writer  s (C++)      memory/bytes (C++)")
    for shape in own.shapes.split(","):
        rows = int(own.gigabytes * 1e9 * 100 / _SHAPES[shape](100, 0, False).nbytes)
        for writers in map(int, own.writers.split(",")):
            ours, theirs = [], []
            for _ in range(own.rounds):
                ours.append(to_cache(caches, shape, writers, rows, own.profile))
                theirs.append(to_keeper(shape, writers, rows))
            a, b = min(ours, key=lambda c: c.server), min(theirs, key=lambda c: c.server)
            ratio = statistics.median(x.server / y.server for x, y in zip(ours, theirs, strict=True))
            late = a.server > _CPU or ratio > _RATIO or a.peak > _ROOM * a.nbytes + writers * _STREAM
            missed |= late
            print(
                f"{shape:8} {writers:7} {a.server:7.2f} {b.server:11.2f} {ratio:6.2f} {a.client:7.2f} {b.client:11.2f}"
                f" {a.wall:5.2f} ({b.wall:5.2f}) {a.peak / a.nbytes:6.2f} ({b.peak / b.nbytes:.2f})"
                f"{'  MISSED' if late else ''}",
                flush=True,
            )
    return missed


def first(endpoint: str, **options: Any) -> None:
    """Reads the first batch."""
    with DataCache(endpoint, **options) as cache:
        next(iter(cache.loader(global_batch_size=1024, seed=1, world=World(0, 1))))


def end_to_end(caches: Caches, own: argparse.Namespace, folder: Path) -> bool:
    """Prints how long it is from rows in a process to a first batch. Returns whether the bar is missed."""
    rows = int(own.gigabytes * 1e9 * 100 / tabular(100, 0, False).nbytes)
    data = tabular(rows, 0, False)
    with minio(own.minio, folder) as properties:
        lake = Lake(folder, f"s3://{BUCKET}/warehouse", properties)
        began = time.monotonic()
        made = lake.create("rows", data.schema, data)
        written = time.monotonic() - began
        cache = caches.start(["--metadata", made.metadata_location], nodes=1, env=s3_environment(properties))
        cache.wait("Ready")
        first(cache.endpoint)
        table = time.monotonic() - began
        cache.stop()
    with started(caches) as (cache, client):
        began = time.monotonic()
        put(client, "rows", data, progress=False)
        sent = time.monotonic() - began
        first(cache.endpoint, dataset="rows")
        direct = time.monotonic() - began
    print(
        f"{rows} rows in memory to the first batch: by a table {table:.2f} s ({written:.2f} s of them to write and"
        f" commit it), put {direct:.2f} s ({sent:.2f} s to publish it): {direct / table:.2f} of it, the bar is {_FIRST}"
    )
    return direct > _FIRST * table


def publish(caches: Caches) -> bool:
    """Prints how long a publication of many parts takes. Returns whether the bar is missed."""
    schema = pa.schema([("n", pa.int64())])
    with started(caches) as (_, client), ThreadPoolExecutor(8) as pool:
        goal = Put.begin(client, "parts", schema, parts=_PARTS)
        receipts = list(
            pool.map(lambda part: goal.send(part, lambda: [pa.record_batch([[part]], schema)]), range(_PARTS))
        )
        began = time.monotonic()
        published = goal.publish(receipts)
        named = time.monotonic() - began
        assert published.rows == _PARTS
    print(f"{_PARTS} parts are published in {named:.2f} s, the bar is {_PUBLISH:g} s")
    return named > _PUBLISH


def epochs(caches: Caches, own: argparse.Namespace, folder: Path) -> bool:
    """Prints what epochs of a put cost beside those of a table. Returns whether the bar is missed."""
    rows = int(own.gigabytes * 1e9 * 100 / tokens(100, 0, False).nbytes)
    data = tokens(rows, 0, False)
    lake = Lake(folder)
    made = lake.create("rows", data.schema, data)
    cache = caches.start(["--metadata", made.metadata_location, "--puts"], nodes=1)
    cache.wait("Ready")
    process = cache.processes["local"].pid
    missed = False
    with DataCache(cache.endpoint) as of_table:
        put(of_table, "rows", data, progress=False)
        with DataCache(cache.endpoint, dataset="rows") as of_put:
            for shuffle in (True, False):
                cost: dict[str, list[float]] = {"table": [], "put": []}
                for epoch in range(own.epochs):
                    for name, source in (("table", of_table), ("put", of_put)):
                        loader = source.loader(global_batch_size=1024, seed=1, shuffle=shuffle, world=World(0, 1))
                        loader.set_epoch(epoch)
                        cpu = cpu_seconds(process)
                        nbytes = sum(batch.nbytes for batch in loader)
                        cost[name].append((cpu_seconds(process) - cpu) / nbytes * 1e9)
                ratio = statistics.median(a / b for a, b in zip(cost["put"], cost["table"], strict=True))
                least = {name: min(values) for name, values in cost.items()}
                print(
                    f"{'shuffled' if shuffle else 'in order'} epochs: table {least['table']:.2f}, put"
                    f" {least['put']:.2f} server CPU-s/GB; {ratio:.3f} of the table's, the bar is {_EPOCH}"
                )
                missed |= ratio > _EPOCH
    cache.stop()
    return missed


def main() -> None:
    """Prints the measurements. Ends with 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", type=Path, help="the cacheserver binary")
    parser.add_argument("--minio", type=Path, help="a MinIO binary")
    parser.add_argument("--gigabytes", type=float, default=0.5, help="of Arrow that is put")
    parser.add_argument("--writers", default="1,4,16", help="at the same time")
    parser.add_argument("--shapes", default=",".join(_SHAPES))
    parser.add_argument("--only", default="streams,first,publish,epochs")
    parser.add_argument("--rounds", type=int, default=3, help="of each, in turns; the least CPU counts")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--profile", type=int, default=0, help="write the server's CPU profiles of so many seconds")
    parser.add_argument("--keep", action="store_true", help=argparse.SUPPRESS)
    own = parser.parse_args()
    if own.keep:
        keep()
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        caches = Caches(own.server.resolve(), folder / "logs")
        sections = {
            "streams": lambda: streams(caches, own),
            "first": lambda: end_to_end(caches, own, folder / "first"),
            "publish": lambda: publish(caches),
            "epochs": lambda: epochs(caches, own, folder / "epochs"),
        }
        for each in ("first", "epochs"):
            (folder / each).mkdir()
        missed = [sections[each]() for each in own.only.split(",")]
    raise SystemExit(any(missed))


if __name__ == "__main__":
    main()
