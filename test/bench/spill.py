# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Benchmark spill: epochs of a table larger than the memory, beside the same table in memory."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from client import Client
from narrow import tokens
from server import Cache, Caches
from take import cpu_of

from benchlib import tables
from benchlib.memory import Group, disk_speed

_FILE = 250 << 20  # about the Arrow bytes of a file, of which there are at least eight
_CPU = 1.2  # bar of CPU-s/GB of shuffled rows with half of their bytes as memory
_WINDOW = 1.3  # bar of the CPU of windows, beside that of the same order of rows in memory
_SPEED = {
    "tokens": 0.7 / 1.17,
    "images": 0.7,
    "photos": 0.7,
}  # bar of the speed of shuffled rows with half of them in memory, of the disk's
_RESTART = 1.0  # seconds; a killed process must be replaced by one that serves within this time
_FRACTIONS = "0,1,0.5,0.25"
_ROOM = 256 << 20  # for the process, decoding, reading and clients
_ORDERS: dict[str, dict[str, Any]] = {
    "shuffled": {"shuffle": True, "clump": 1},
    "window": {"shuffle": True},
    "in order": {"shuffle": False},
}


def images(rows: int, seed: int) -> pa.Table:
    """Images of 20 KB, which do not compress."""
    body, label = tables.images(np.random.default_rng(seed), 0, rows)
    return pa.table({"image": body, "label": label})


def photos(rows: int, seed: int) -> pa.Table:
    """Images of 100 to 120 KB, as those of ImageNet, which do not compress."""
    rng = np.random.default_rng(seed)
    offsets = np.zeros(rows + 1, np.int32)
    np.cumsum(rng.integers(100_000, 120_001, rows), out=offsets[1:])
    body = pa.BinaryArray.from_buffers(
        pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(rng.bytes(int(offsets[-1])))]
    )
    return pa.table({"image": body, "label": pa.array(rng.integers(0, 1000, rows).astype(np.int32))})


def metric(cache: Cache, name: str) -> float:
    """The value of a metric without labels."""
    lines = cache.get("/metrics")[1].splitlines()
    return next((float(line.split()[1]) for line in lines if line.startswith(f"datacache_{name} ")), 0.0)


def resident(cache: Cache) -> int:
    """The greatest resident memory that the process has had."""
    status = Path(f"/proc/{cache.processes['local'].pid}/status").read_text()
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM"))


def epoch(cache: Cache, number: int, order: dict[str, Any]) -> dict[str, float]:
    """Reads an epoch and returns what it cost."""
    client, cpu, read = Client(cache.endpoint), cpu_of(cache), metric(cache, "spill_read_bytes_total")
    began, nbytes, first = time.monotonic(), 0, 0.0
    info = client.command(kind="epoch", seed=1, epoch=number, global_batch=4096, tail="keep", rank=0, world=1, **order)
    for endpoint in info.endpoints:
        for chunk in client.node(endpoint).do_get(endpoint.ticket):
            first = first or time.monotonic() - began
            nbytes += chunk.data.nbytes
    seconds, cpu = time.monotonic() - began, cpu_of(cache) - cpu
    read = metric(cache, "spill_read_bytes_total") - read
    return {"first": first, "speed": nbytes / seconds, "cpu": cpu / nbytes * 1e9, "read": read, "bytes": nbytes}


def join(group: Group, cache: Cache) -> None:
    """Moves the process into the control group. The kernel kills it if it needs more memory than the group's limit."""
    Path(group.processes).write_text(str(cache.processes["local"].pid))


class Bench:
    """The measurements of one table."""

    def __init__(self, chosen: argparse.Namespace, caches: Caches, scratch: Path) -> None:
        self.missed = False
        self._chosen, self._caches, self._scratch = chosen, caches, scratch
        self._resident: dict[str, float] = {}  # CPU-s/GB of rows in memory, by order
        self._orders = {name: dict(_ORDERS[name]) for name in chosen.orders}
        if window := self._orders.get("window"):
            window["clump"], window["window"] = chosen.window

    def prepare(self) -> None:
        """Writes the table."""
        self._table.mkdir()
        make = {"images": images, "photos": photos}.get(
            self._chosen.table, lambda rows, seed: tokens(rows, seed, self._chosen.whole)
        )
        each, total = make(100, 0).nbytes / 100, self._chosen.gigabytes * 1e9
        files = max(8, round(total / _FILE))
        for i in range(files):
            group = max(64, int((16 << 20) / each)) if self._chosen.table != "tokens" else 1 << 14
            pq.write_table(
                make(int(total / files / each), i),
                self._table / f"{i}.parquet",
                compression="zstd",
                row_group_size=group,
            )
        size = sum(file.stat().st_size for file in self._table.iterdir())
        print(f"{self._chosen.table}: {total / 1e9:.2f} GB of Arrow, {size / 1e9:.2f} GB in {files} files", flush=True)

    @property
    def _table(self) -> Path:
        return self._scratch / "table"

    def stored(self) -> int:
        """The bytes of the rows as they are in memory."""
        env = {"SPILL_DIR": str(self._scratch / "spill"), "MEMORY_LIMIT": "1GiB"}
        cache = self._caches.start(["--files", str(self._table)], nodes=1, env=env)
        stored = int(cache.wait("Ready")["bytes"])
        cache.stop()
        print(f"{stored / 1e9:.2f} GB stored", flush=True)
        return stored

    def measure(self, where: str, limit: int) -> None:
        """Prints what it costs with a limit of memory; 0: none, without files."""
        env = {"SPILL_DIR": str(self._scratch / "spill"), "MEMORY_LIMIT": str(limit)} if limit else {}
        with contextlib.ExitStack() as stack:
            group = stack.enter_context(Group(limit)) if limit else None
            began = time.monotonic()
            flags = ["--files", str(self._table), "--profiles"]
            cache = self._caches.start(flags, nodes=1, env=env)
            stack.callback(cache.stop)
            if group:
                join(group, cache)
            self._read(cache, where, limit, began)
            if group:
                self._restart(cache, where, group)

    def _read(self, cache: Cache, where: str, limit: int, began: float) -> None:
        """Reads epochs of a cache that was started."""
        stored = int(cache.wait("Ready")["bytes"])
        load, cpu = time.monotonic() - began, cpu_of(cache) / stored * 1e9
        disk = disk_speed(map(str, sorted((self._scratch / "spill").rglob("*.rows")))) if limit else 0.0
        print(
            f"{where:8} load {load:5.1f} s, {stored / load / 1e6:.0f} MB/s stored, {cpu:5.2f} CPU-s/GB stored;"
            f" disk {disk / 1e6:.0f} MB/s; limit {limit / 1e6:.0f} MB",
            flush=True,
        )
        for name, order in self._orders.items():
            cost = dict[str, float]()
            for number in range(self._chosen.epochs):
                with self._profile(cache, f"{where}-{name}-{number}"):
                    cost = epoch(cache, number, order)
                self._print(where, name, number, cost, stored, disk, resident(cache))
            self._missed(where, name, cost, disk)
        self.missed |= 0 < limit < resident(cache)

    def _restart(self, cache: Cache, where: str, group: Group) -> None:
        """Kills the process, starts it again, and prints when the rows are served. The new process may read the footers
        of the table's files, to plan, but no rows."""
        began = time.monotonic()
        cache.restart("local")
        join(group, cache)
        stored = int(cache.wait("Ready")["bytes"])
        seconds, read = time.monotonic() - began, metric(cache, "load_read_bytes_total")
        met = seconds <= _RESTART and read < stored / 100
        print(
            f"{where:8} killed: serves again after {seconds:.2f} s, {read / 1e6:.1f} MB of the table read"
            f" (bar: {_RESTART} s, footers): {'met' if met else 'MISSED'}",
            flush=True,
        )
        self.missed |= not met

    def _print(
        self, where: str, name: str, number: int, cost: dict[str, float], stored: int, disk: float, peak: int
    ) -> None:
        beside = self._resident.get(name, 0.0)
        share = f" ({cost['speed'] * stored / cost['bytes'] / disk:.2f} of the disk)" if disk else ""
        times = f" ({cost['cpu'] / beside:.2f} of memory)" if disk and beside else ""
        print(
            f"{where:8} {name} epoch {number}: first batch {cost['first']:5.2f} s, {cost['speed'] / 1e6:5.0f} MB/s"
            f"{share}, {cost['cpu']:5.2f} CPU-s/GB{times}, read {cost['read'] / stored:5.2f} D,"
            f" peak {peak / 1e6:.0f} MB",
            flush=True,
        )

    def _missed(self, where: str, name: str, cost: dict[str, float], disk: float) -> None:
        """Holds the last epoch of an order to the bars."""
        if not disk:
            self._resident[name] = cost["cpu"]
            return
        bars = dict[str, bool]()
        if name == "shuffled" and where == "D x 0.5":
            bars[f"at most {_CPU} CPU-s/GB"] = cost["cpu"] <= _CPU
            least = _SPEED[self._chosen.table]
            bars[f"at least {least:.2f} of the disk"] = cost["speed"] >= least * disk
        if name == "window" and name in self._resident:
            bars[f"at most {_WINDOW} of the CPU of memory"] = cost["cpu"] <= _WINDOW * self._resident[name]
        for bar, met in bars.items():
            print(f"{where:8} {name}: {bar}: {'met' if met else 'MISSED'}", flush=True)
            self.missed |= not met

    @contextlib.contextmanager
    def _profile(self, cache: Cache, name: str) -> Iterator[None]:
        """Keeps the CPU profile of what is read meanwhile."""
        if self._chosen.profiles is None:
            yield
            return
        seconds, path = 5, self._chosen.profiles / f"{name.replace(' ', '-')}.pprof"
        path.parent.mkdir(parents=True, exist_ok=True)
        url = f"{cache.http}/debug/pprof/profile?seconds={seconds}"
        thread = threading.Thread(target=lambda: path.write_bytes(urllib.request.urlopen(url).read()))
        thread.start()
        yield
        thread.join()


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", type=Path, required=True, help="the cacheserver binary")
    parser.add_argument("--table", choices=list(_SPEED), default="tokens")
    parser.add_argument("--gigabytes", type=float, default=2.0, help="Arrow bytes; of tokens half are stored")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument(
        "--fractions", default=_FRACTIONS, help="limits of memory, of the stored bytes; 0: none, without files"
    )
    parser.add_argument("--limit", type=float, help="instead, one limit of memory, in MB, of the whole process")
    parser.add_argument("--orders", type=lambda text: text.split(","), default=list(_ORDERS), help="default: all")
    parser.add_argument(
        "--window", type=lambda text: [int(n) for n in text.split(",")], default=[4096, 16], help="clump,window"
    )
    parser.add_argument("--whole", action="store_true", help="integers need all their bytes")
    parser.add_argument("--folder", type=Path, help="where table and rows are (default: that of temporary files)")
    parser.add_argument("--profiles", type=Path, help="where CPU profiles of the epochs are kept")
    return parser.parse_args()


def main() -> None:
    """Prints the measurements. Ends with 1 if a bar is missed."""
    chosen = options()
    with (
        tempfile.TemporaryDirectory(dir=chosen.folder) as folder,
        contextlib.closing(Caches(chosen.server.resolve(), Path(folder) / "logs")) as caches,
    ):
        bench = Bench(chosen, caches, Path(folder))
        bench.prepare()
        if chosen.limit:
            bench.measure("limit", int(chosen.limit * 1e6))
        else:
            stored = bench.stored()
            for word in chosen.fractions.split(","):
                fraction = float(word)
                bench.measure(
                    f"D x {word}" if fraction else "memory", int(stored * fraction + _ROOM) if fraction else 0
                )
    raise SystemExit(bench.missed)


if __name__ == "__main__":
    main()
