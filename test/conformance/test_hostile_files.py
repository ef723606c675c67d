# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Hostile Parquet files: those made to use memory are refused within its limit, others read as pyarrow reads them."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from seeds import seeds
from server import Cache

#: How many files test_mutants makes.
MUTANTS = int(os.environ.get("HOSTILE_FILES", "12"))
LIMIT = 128 << 20


def peak(cache: Cache, name: str) -> int:
    """The largest resident memory of a process so far, in bytes."""
    status = Path(f"/proc/{cache.processes[name].pid}/status").read_text()
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM"))


@pytest.mark.parametrize("codec", ["zstd", "brotli", "snappy"])
def test_one_large_page(codec: str, tmp_path: Path, private: Callable[..., Cache]) -> None:
    """A page of 240 MB, of which the file has few bytes, is refused under a limit of 128 MiB."""
    rows = 30_000_000
    pq.write_table(
        pa.table({"a": np.zeros(rows, dtype="int64")}),
        tmp_path / "a.parquet",
        compression=codec,
        data_page_size=1 << 30,
        max_rows_per_page=rows,
        row_group_size=rows,
        write_batch_size=rows,
        use_dictionary=False,
    )
    cache = private(["--files", str(tmp_path)], nodes=1, mode="cluster", env={"MEMORY_LIMIT": str(LIMIT)})
    reason = cache.wait("Failed")["reason"]
    for part in (
        "no room for its pages",
        "a.parquet row group 0",
        'column "a"',
        "240000",
        "bytes uncompressed",
        "smaller pages",
    ):
        assert part in reason
    assert peak(cache, "node-0") < LIMIT
    assert peak(cache, "head") < LIMIT


def original(file: Path) -> pa.Table:
    """Writes a file of several row groups, encodings and kinds of columns, and returns its rows."""
    rows = 3000
    table = pa.table(
        {
            "id": pa.array(range(rows), pa.int64()),
            "word": pa.array([None if i % 7 == 0 else f"word {i % 50}" for i in range(rows)]),
            "text": pa.array([f"text {i}" * (i % 5) for i in range(rows)]),
            "list": pa.array([list(range(i % 4)) if i % 3 else None for i in range(rows)], pa.list_(pa.int32())),
            "pair": pa.array([{"a": i / 2, "b": i % 2 == 0} if i % 5 else None for i in range(rows)]),
        }
    )
    pq.write_table(table, file, row_group_size=1000, compression="zstd", data_page_size=4096)
    return table


def mutate(data: bytearray, places: list[tuple[int, int]], r: random.Random) -> None:
    """Changes one to three bytes or numbers in one of the ranges: of the footer, and of the beginnings of pages."""
    lo, hi = r.choice(places)
    for _ in range(r.randint(1, 3)):
        at = r.randrange(lo, hi)
        extremes = [
            b"\x00",
            b"\x01",
            b"\x7f",
            b"\xfe\xff\xff\xff\x0f",
            b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
            b"\x80\x80\x04",
        ]
        number = r.choice([bytes([data[at] ^ 1 << r.randrange(8)]), *extremes])[: hi - at]
        data[at : at + len(number)] = number


def equal(got: pa.Table, want: pa.Table) -> bool:
    """Whether a cache has served these rows."""
    return got.column_names == want.column_names and got.equals(want.cast(got.schema))


def test_mutants(tmp_path: Path, private: Callable[..., Cache]) -> None:
    """Numbers of footers and page headers are changed: what is served are pyarrow's rows, or those from before."""
    folder = tmp_path / "files"
    folder.mkdir()
    whole = original(folder / "a.parquet")
    written = (folder / "a.parquet").read_bytes()
    footer = int.from_bytes(written[-8:-4], "little")
    about = pq.read_metadata(folder / "a.parquet")
    chunks = [about.row_group(g).column(c) for g in range(3) for c in range(about.num_columns)]
    pages = {p for c in chunks for p in (c.data_page_offset, c.dictionary_page_offset) if p}
    places = [(len(written) - 8 - footer, len(written) - 4)] * len(pages) + [(p, p + 30) for p in sorted(pages)]
    outcomes = {"Ready": 0, "Failed": 0}
    for seed in seeds(MUTANTS):
        data = bytearray(written)
        mutate(data, places, random.Random(seed))
        (folder / "a.parquet").write_bytes(data)
        cache = private(["--files", str(folder)], nodes=1, mode="cluster", env={"MEMORY_LIMIT": str(LIMIT)})
        state = cache.wait("Ready", "Failed")["state"]
        outcomes[state] += 1
        if state == "Ready":
            got = cache.client().table()
            served = equal(got, whole) or equal(got, pq.read_table(folder / "a.parquet"))
            assert served, f"seed {seed}"
        assert max(peak(cache, "node-0"), peak(cache, "head")) < LIMIT, f"seed {seed}"
        cache.stop()
    print(outcomes)
    assert outcomes["Failed"] > 0
