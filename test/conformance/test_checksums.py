# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Pages that carry a CRC: Spark writes them so, pyarrow on request. A changed byte must not become a value."""

from __future__ import annotations

import io
from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from canon import difference, rows_of
from client import Client
from lake import Lake
from server import Cache

Connect = Callable[[Cache], Client]

ROWS = pa.table({"id": pa.array(range(20_000), pa.int64()), "text": [f"value {i}" for i in range(20_000)]})


def _parquet(version: str, codec: str) -> bytes:
    """A file whose values lie in it as they are, or compressed, with a CRC on every page."""
    out = io.BytesIO()
    pq.write_table(
        ROWS, out, write_page_checksum=True, compression=codec, use_dictionary=False, data_page_version=version
    )
    return out.getvalue()


@pytest.mark.parametrize("codec", ["none", "zstd", "snappy"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_a_changed_byte_fails_the_cache(
    version: str, codec: str, lake: Lake, private: Callable[..., Cache], connect: Connect
) -> None:
    name = f"checksums_{version[0]}_{codec}"
    content = _parquet(version, codec)
    uri = lake.write(f"{name}.parquet", content)
    table = lake.create(name, ROWS.schema)
    table.add_files([uri])
    made = lake.pin(name, table)
    good = private(["--metadata", made.metadata])
    good.wait("Ready")
    assert difference(rows_of(connect(good).table()), rows_of(ROWS)) == ""

    middle = len(content) // 3
    lake.write(f"{name}.parquet", content[:middle] + bytes([content[middle] ^ 0x10]) + content[middle + 1 :])
    reason = private(["--metadata", made.metadata]).wait("Failed")["reason"]
    assert f"{name}.parquet" in reason
    assert "checksum does not match" in reason
