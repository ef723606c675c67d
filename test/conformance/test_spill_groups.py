# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Row groups larger than the memory of a data node: they are decoded piece by piece, to spill files."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest
from client import Client
from lake import Lake
from server import Cache, s3_environment
from stores import BUCKET
from test_s3 import bucket
from test_spill import epoch, flip, metric

__all__ = ["bucket"]  # the fixture

Connect = Callable[[Cache], Client]
Private = Callable[..., Cache]

ROWS = 150_000
PROCESS = 96 << 20  # of the limit of memory, for the process itself


def noise(rows: int, mean: int) -> pa.Table:
    """Rows of random bytes of about a length, which do not compress, and their numbers."""
    generator = np.random.default_rng(rows)
    ends = np.concatenate([[0], np.cumsum(generator.integers(mean // 2, mean * 3 // 2, rows))]).astype(np.int32)
    data = pa.py_buffer(generator.bytes(int(ends[-1])))
    return pa.table(
        {"id": np.arange(rows), "data": pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(ends), data])}
    )


def limited(private: Private, where: str, memory: int, spill: Path, **env: str) -> Cache:
    """A cache with spill files and a limit of memory, besides what the process takes."""
    env |= {"SPILL_DIR": str(spill), "MEMORY_LIMIT": str(PROCESS + memory)}
    return private(["--files", where], nodes=1, env=env)


@pytest.mark.parametrize(
    "compression", ["zstd", *(pytest.param(name, marks=pytest.mark.night) for name in ("none", "snappy"))]
)
def test_a_row_group_larger_than_the_memory(
    private: Private, connect: Connect, bucket: Lake, tmp_path: Path, compression: str
) -> None:
    """Of a store that is read over the network. Broken chunks are decoded again from there."""
    table, memory = noise(ROWS, 700), 56 << 20
    assert table.nbytes > 1.8 * memory
    given, where = bucket.properties, f"{BUCKET}/groups/{compression}"
    store = pyarrow.fs.S3FileSystem(
        access_key=given["s3.access-key-id"], secret_key=given["s3.secret-access-key"], region=given["s3.region"],
        endpoint_override=given["s3.endpoint"],
    )  # fmt: skip
    pq.write_table(table, f"{where}/0.parquet", filesystem=store, compression=compression, row_group_size=ROWS)
    cache = limited(private, f"s3://{where}", memory, tmp_path / "spill", **s3_environment(given))
    cache.wait("Ready")
    client = connect(cache)
    assert epoch(client, 0).sort_by("id").equals(table)
    flip(tmp_path / "spill", 3, random.Random(1))
    assert epoch(client, 1).sort_by("id").equals(table)
    assert metric(cache, "spill_repaired_chunks_total") > 0
    status = Path(f"/proc/{cache.processes['local'].pid}/status").read_text()
    peak = next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM"))
    assert peak <= PROCESS + memory


def test_a_page_larger_than_the_memory_is_explained(private: Private, tmp_path: Path) -> None:
    """pyarrow writes at least 1,024 values to a page, which must be in memory to be uncompressed."""
    (tmp_path / "table").mkdir()
    pq.write_table(noise(1_500, 60_000), tmp_path / "table" / "0.parquet", compression="zstd")
    cache = limited(private, str(tmp_path / "table"), 64 << 20, tmp_path / "spill")
    reason = cache.wait("Failed")["reason"]
    assert "0.parquet row group 0: no room to load even one row group at a time" in reason
    assert "or write the table with smaller pages and row groups" in reason
    limited(private, str(tmp_path / "table"), 144 << 20, tmp_path / "enough").wait("Ready")
