# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""make bench-narrow: memory and load of columns of 16 bits as Parquet files and in an Iceberg table."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from lake import Lake
from server import Caches
from take import cpu_of

_BAR, _LENGTH, _FILES = 0.52, 512, 4
_SETTLED = 3  # seconds after which freed memory has gone back
# Iceberg has neither type: the values and the type in which it keeps them.
_TYPES = {"uint16": (pa.uint16(), pa.int32()), "float16": (pa.float16(), pa.float32())}


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


def main() -> None:
    """Prints the measurements. Ends with 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", type=Path, required=True, help="the cacheserver binary")
    parser.add_argument("--gigabytes", type=float, default=0.5, help="Arrow bytes in Iceberg's types")
    arguments = parser.parse_args()
    rows = int(arguments.gigabytes * 1e9 / 4 / (_LENGTH + 1) / _FILES) * _FILES
    print(f"{'':8} {'resident MB':>12} {'in Iceberg':>11} {'ratio':>6}  {'load CPU-s':>10} {'in Iceberg':>11}")
    missed = False
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
        ratio = (narrow - empty) / (whole - empty)
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
