# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Benchmark narrow: integers in fewer bytes than their type has, in memory and on the wire; and columns of 16 bits as
files and in Iceberg."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from client import Client
from lake import Lake
from server import Cache, Caches
from take import cpu_of

from kubeflow_datacache import DataCache, World

_BAR, _LENGTH, _FILES = 0.52, 512, 4
_SETTLED = 3  # seconds after which freed memory has gone back
# Iceberg has neither type: the values and the type in which it keeps them.
_TYPES = {"uint16": (pa.uint16(), pa.int32()), "float16": (pa.float16(), pa.float32())}

# What integers in fewer bytes may cost of the same ones as they are.
_BARS = {"load": 1.0, "shuffled": 1.15, "in order": 1.3}
# What they may cost in shorter types on the wire, of the same cache's streams without: bytes, and CPU time of client
# and server. Of tabular, less than half of the bytes are integers that can be shorter.
_WIRE_BARS = {
    "tokens": {"wire": 0.51, "shuffled": 0.7, "in order": 0.7},
    "tabular": {"wire": 0.85, "shuffled": 1.1, "in order": 1.1},
}
_EPOCHS, _STEP = 4, 1024
_RARE = 1000  # one number in so many is so large that a chunk with it keeps a column as it is


def table(of: pa.DataType, rows: int, seed: int) -> pa.Table:
    """Rows with a list of values and a label, both of the type."""
    random = np.random.default_rng(seed)
    values = random.integers(0, 60_000, rows * _LENGTH, np.uint16)
    if pa.types.is_float16(of):
        values = (values / 64).astype(np.float16)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(values, of), _LENGTH)
    return pa.table({"values": lists, "label": pa.array(values[:rows], of)})


def measure(caches: Caches, source: list[str]) -> tuple[int, float]:
    """Returns resident bytes of a loaded cache of one data node, and the CPU seconds of its load."""
    cache = caches.start(source, nodes=1)
    cache.wait("Ready")
    cpu = cpu_of(cache)
    time.sleep(_SETTLED)
    status = Path(f"/proc/{cache.processes['local'].pid}/status").read_text()
    cache.stop()
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmRSS")), cpu


def tokens(rows: int, seed: int, whole: bool) -> pa.Table:
    """Rows with a list of tokens below 50,000 and a label; if whole, with some that need all bits of an int32."""
    random = np.random.default_rng(seed)
    values = random.integers(0, 50_000, rows * _LENGTH, np.int32)
    if whole:
        values[:: 2 * _RARE], values[_RARE :: 2 * _RARE] = -(1 << 31), (1 << 31) - 1
    ends = np.arange(0, (rows + 1) * _LENGTH, _LENGTH, dtype=np.int32)
    return pa.table({"tokens": pa.ListArray.from_arrays(ends, values), "label": random.integers(0, 1000, rows)})


def tabular(rows: int, seed: int, whole: bool) -> pa.Table:
    """Rows of four int64 that need fewer bits, four float64 and a text; if whole, every int64 needs all bits."""
    random = np.random.default_rng(seed)
    numbers = [np.arange(rows) + seed * rows, *(random.integers(0, most, rows) for most in (1000, 1 << 40, 1 << 31))]
    if whole:
        for column in numbers:
            column[:: 2 * _RARE], column[_RARE :: 2 * _RARE] = -(1 << 62), 1 << 62
    columns = {f"i{i}": column for i, column in enumerate(numbers)}
    columns |= {f"f{i}": random.standard_normal(rows) for i in range(4)}
    text = pa.array(random.integers(0, 1 << 62, rows)).cast(pa.string())
    return pa.table({**columns, "name": text})


# A table and the most resident bytes of one byte of Arrow.
_TABLES: dict[str, tuple[Callable[[int, int, bool], pa.Table], float]] = {
    "tokens": (tokens, 0.55),
    "tabular": (tabular, 0.8),
}


def ready(caches: Caches, source: list[str]) -> tuple[Cache, float]:
    """Returns a cache of one data node and the CPU seconds of its load."""
    cache = caches.start(source, nodes=1)
    cache.wait("Ready")
    return cache, cpu_of(cache)


def epoch(cache: Cache, shuffle: bool) -> float:
    """Reads an epoch a few times and returns the server's CPU seconds per GB; the kernel counts them in hundredths."""
    client, began, nbytes = Client(cache.endpoint), cpu_of(cache), 0
    info = client.command(
        kind="epoch", seed=1, epoch=0, shuffle=shuffle, clump=1, global_batch=4096, tail="keep", rank=0, world=1
    )
    for endpoint in info.endpoints * _EPOCHS:
        for chunk in client.node(endpoint).do_get(endpoint.ticket):
            nbytes += chunk.data.nbytes
    return (cpu_of(cache) - began) / (nbytes / 1e9)


def sent(cache: Cache) -> float:
    """Bytes of streams that the data node has sent."""
    _, text = cache.get("/metrics")
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith("datacache_stream_bytes_total"))


def read(cache: Cache, shuffle: bool, narrow: bool) -> tuple[float, float]:
    """Reads epochs by the loader, to numpy. Returns CPU seconds of both ends, and GB sent, per GB of Arrow."""
    with DataCache(cache.endpoint, narrow=narrow) as client:
        loader = client.loader(global_batch_size=_STEP, shuffle=shuffle, seed=1, tail="keep", world=World(0, 1))
        for _ in loader:  # opens connections, and touches the memory that later epochs use again
            pass
        began, before, nbytes = time.process_time() + cpu_of(cache), sent(cache), 0
        for batch in itertools.chain.from_iterable(loader for _ in range(_EPOCHS)):
            batch.numpy()
            nbytes += batch.nbytes
        return (time.process_time() + cpu_of(cache) - began) / nbytes * 1e9, (sent(cache) - before) / nbytes


def on_the_wire(cache: Cache, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """What streams in shorter types take, each beside those without."""
    pairs: dict[str, list[tuple[float, float]]] = {"wire": [], "shuffled": [], "in order": []}
    for shuffle, what in ((True, "shuffled"), (False, "in order")):
        for _ in range(rounds):
            (own, own_bytes), (plain, plain_bytes) = (read(cache, shuffle, narrow) for narrow in (True, False))
            pairs[what].append((own, plain))
            pairs["wire"].append((own_bytes, plain_bytes))
    return pairs


def show(name: str, what: str, own: float, reference: float, ratio: float, most: float) -> bool:
    """Prints a figure beside its bar, and returns whether that is missed."""
    verdict = "met" if ratio <= most else "NOT MET"
    print(f"{name:8} {what:28} {own:8.2f} {reference:8.2f} {ratio:6.2f}  bar {most}: {verdict}", flush=True)
    return ratio > most


def integers(server: Path, name: str, gigabytes: float, rounds: int) -> bool:
    """Prints what a table's integers cost in fewer bytes and as they are. Returns whether a bar is missed."""
    make, bar = _TABLES[name]
    rows = int(gigabytes * 1e9 * 100 / make(100, 0, False).nbytes / _FILES)
    size = 0
    with tempfile.TemporaryDirectory() as scratch, contextlib.closing(Caches(server, Path(scratch) / "logs")) as caches:
        folders = {whole: Path(scratch) / f"whole-{whole}" for whole in (False, True)}
        for whole, folder in folders.items():
            folder.mkdir()
            for i in range(_FILES):
                part = make(rows, i, whole)
                size += part.nbytes * (not whole)
                pq.write_table(part, folder / f"{i}.parquet", compression="zstd", row_group_size=1 << 18)
        (Path(scratch) / "one").mkdir()
        pq.write_table(make(1, 0, False), Path(scratch) / "one" / "0.parquet")
        empty, _ = measure(caches, ["--files", str(Path(scratch) / "one")])
        resident, _ = measure(caches, ["--files", str(folders[False])])
        costs: dict[str, list[tuple[float, float]]] = {what: [] for what in _BARS}
        for _ in range(rounds):
            (few, load), (whole, whole_load) = (ready(caches, ["--files", str(folders[w])]) for w in (False, True))
            few_costs, whole_costs = (
                {"load": cpu / size * 1e9, "shuffled": epoch(each, True), "in order": epoch(each, False)}
                for each, cpu in ((few, load), (whole, whole_load))
            )
            few.stop()
            whole.stop()
            for what, pairs in costs.items():
                pairs.append((few_costs[what], whole_costs[what]))
        few, _ = ready(caches, ["--files", str(folders[False])])
        narrow = on_the_wire(few, rounds)
    missed = show(name, "resident", (resident - empty) / 1e6, size / 1e6, (resident - empty) / size, bar)
    figures = [(what, pairs, _BARS[what]) for what, pairs in costs.items()]
    figures += [(f"narrow: {what}", pairs, _WIRE_BARS[name][what]) for what, pairs in narrow.items()]
    for what, pairs, most in figures:
        own, reference = (statistics.median(each) for each in zip(*pairs, strict=True))
        missed |= show(name, what, own, reference, statistics.median(a / b for a, b in pairs), most)
    return missed


def main() -> None:
    """Prints the measurements. Ends with 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", type=Path, required=True, help="the cacheserver binary")
    parser.add_argument("--gigabytes", type=float, default=0.5, help="Arrow bytes in Iceberg's types")
    parser.add_argument("--rounds", type=int, default=5, help="loads and epochs of each table of integers")
    arguments = parser.parse_args()
    print("int32 and int64: resident MB beside those of Arrow; CPU-s/GB beside that of integers that need all bytes;")
    print(
        "narrow: bytes sent, and CPU-s of loader and server, a byte and GB of Arrow, beside those of a loader that does"
    )
    print("not ask for shorter types")
    missed = False
    for name in _TABLES:
        missed |= integers(arguments.server.resolve(), name, arguments.gigabytes, arguments.rounds)
    rows = int(arguments.gigabytes * 1e9 / 4 / (_LENGTH + 1) / _FILES) * _FILES
    print("uint16 and float16: the ratio is of the bytes of Arrow in Iceberg's types")
    print(f"{'':8} {'resident MB':>12} {'in Iceberg':>11} {'ratio':>6}  {'load CPU-s':>10} {'in Iceberg':>11}")
    for name, (own, wide) in _TYPES.items():
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            parts = [table(own, rows // _FILES, seed) for seed in range(_FILES)]
            for path, files in (("files", parts), ("one", [parts[0].slice(0, 1)])):
                (folder / path).mkdir()
                for i, part in enumerate(files):
                    pq.write_table(part, folder / path / f"{i}.parquet", compression="zstd")
            schema = pa.schema([("values", pa.list_(wide)), ("label", wide)])
            made = Lake(folder).create("narrow", schema, [part.cast(schema) for part in parts])
            with contextlib.closing(Caches(arguments.server.resolve(), folder / "logs")) as caches:
                empty, _ = measure(caches, ["--files", str(folder / "one")])
                narrow, cpu = measure(caches, ["--files", str(folder / "files")])
                whole, wide_cpu = measure(caches, ["--metadata", made.metadata_location])
        ratio = (narrow - empty) / sum(part.cast(schema).nbytes for part in parts)
        missed |= ratio > _BAR
        bar = f"bar {_BAR}: {'met' if ratio <= _BAR else 'NOT MET'}"
        megabytes = [(each - empty) / 1e6 for each in (narrow, whole)]
        print(
            f"{name:8} {megabytes[0]:12.1f} {megabytes[1]:11.1f} {ratio:6.3f}  {cpu:10.2f} {wide_cpu:11.2f}  {bar}",
            flush=True,
        )
    raise SystemExit(missed)


if __name__ == "__main__":
    main()
