# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A Parquet file that is made to use memory is refused with a reason, within the memory limit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from server import Cache

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
    for part in ("a.parquet row group 0", 'column "a"', "240000", "bytes uncompressed", "smaller pages"):
        assert part in reason
    assert peak(cache, "node-0") < LIMIT
    assert peak(cache, "head") < LIMIT
