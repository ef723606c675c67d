# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Pages with a CRC, as Spark writes by default and pyarrow on request: corruption must be detected."""

from __future__ import annotations

import io
import random
import struct
from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from canon import difference, rows_of
from client import Client
from lake import Lake
from seeds import seeds
from server import Cache

Connect = Callable[[Cache], Client]

IDS, TEXTS = pa.array(range(20_000), pa.int64()), pa.array([f"value {i}" for i in range(20_000)])
# Package decode decodes columns of plain values, pqarrow decodes structs.
TABLES = {
    "plain": pa.table({"id": IDS, "text": TEXTS}),
    "struct": pa.table({"both": pa.StructArray.from_arrays([IDS, TEXTS], names=["id", "text"])}),
}


def _parquet(rows: pa.Table, version: str, codec: str) -> bytes:
    """A Parquet file with plain encoding, uncompressed or compressed, and a CRC in every page."""
    out = io.BytesIO()
    pq.write_table(
        rows, out, write_page_checksum=True, compression=codec, use_dictionary=False, data_page_version=version
    )
    return out.getvalue()


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("codec", ["none", "zstd", "snappy"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_a_changed_byte_fails_the_cache(
    version: str, codec: str, kind: str, lake: Lake, private: Callable[..., Cache], connect: Connect
) -> None:
    rows = TABLES[kind]
    name = f"checksums_{version[0]}_{codec}_{kind}"
    content = _parquet(rows, version, codec)
    uri = lake.write(f"{name}.parquet", content)
    table = lake.create(name, rows.schema)
    table.add_files([uri])
    made = lake.pin(name, table)
    good = private(["--metadata", made.metadata])
    good.wait("Ready")
    assert difference(rows_of(connect(good).table()), rows_of(rows)) == ""

    middle = len(content) // 3
    lake.write(f"{name}.parquet", content[:middle] + bytes([content[middle] ^ 0x10]) + content[middle + 1 :])
    reason = private(["--metadata", made.metadata]).wait("Failed")["reason"]
    assert f"{name}.parquet" in reason
    assert "checksum does not match" in reason


@pytest.mark.parametrize("seed", seeds(16))
def test_flipped_bits_are_refused_or_harmless(
    seed: int, lake: Lake, private: Callable[..., Cache], connect: Connect
) -> None:
    """Flips 1 or 3 bits in pages or page headers: the cache must fail, or serve exactly the rows."""
    r = random.Random(seed)
    rows = TABLES[r.choice(list(TABLES))].slice(0, 500)
    content = bytearray(_parquet(rows, r.choice(["1.0", "2.0"]), r.choice(["none", "zstd", "snappy"])))
    name = f"flipped_{seed}"
    uri = lake.write(f"{name}.parquet", bytes(content))
    table = lake.create(name, rows.schema)
    table.add_files([uri])
    made = lake.pin(name, table)

    pages_end = len(content) - 8 - struct.unpack("<I", content[-8:-4])[0]
    for _ in range(r.choice([1, 3])):
        content[r.randrange(4, pages_end)] ^= 1 << r.randrange(8)
    lake.write(f"{name}.parquet", bytes(content))
    cache = private(["--metadata", made.metadata])
    if cache.wait("Ready", "Failed")["state"] == "Ready":
        assert difference(rows_of(connect(cache).table()), rows_of(rows)) == ""
