# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Files in all encodings, page versions and codecs that pyarrow writes: the cache serves the written rows."""

from __future__ import annotations

import datetime as dt
import io
import random
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from canon import difference, rows_of
from client import Client
from lake import Lake
from server import Cache

Connect = Callable[[Cache], Client]

EPOCH = dt.datetime(1970, 1, 1)

# A column per type, with the function that makes its values, and pyarrow's encodings for it in addition to PLAIN.
INTEGER = ("DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT")
TEXT = ("DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY")
FIXED = ("DELTA_BYTE_ARRAY", "BYTE_STREAM_SPLIT")
COLUMNS: dict[str, tuple[pa.DataType, Callable[[random.Random], Any], tuple[str, ...]]] = {
    "flag": (pa.bool_(), lambda r: r.random() < 0.9, ("RLE",)),
    "int": (pa.int32(), lambda r: r.randrange(-(2**31), 2**31), INTEGER),
    "long": (pa.int64(), lambda r: r.randrange(-(2**63), 2**63), INTEGER),
    "float": (pa.float32(), lambda r: r.randrange(1000) / 8, ("BYTE_STREAM_SPLIT",)),
    "double": (pa.float64(), lambda r: r.random(), ("BYTE_STREAM_SPLIT",)),
    "day": (pa.date32(), lambda r: dt.date(1900, 1, 1) + dt.timedelta(r.randrange(90000)), INTEGER),
    "time": (
        pa.time64("us"),
        lambda r: (EPOCH + dt.timedelta(microseconds=r.randrange(86_400_000_000))).time(),
        INTEGER,
    ),
    "at": (pa.timestamp("us"), lambda r: EPOCH + dt.timedelta(seconds=r.randrange(-(10**9), 10**9)), INTEGER),
    "price": (pa.decimal128(7, 2), lambda r: Decimal(r.randrange(-(10**7) + 1, 10**7)).scaleb(-2), FIXED),
    "total": (pa.decimal128(38, 4), lambda r: Decimal(r.randrange(-(10**20), 10**20)).scaleb(-4), FIXED),
    "name": (pa.string(), lambda r: f"name {r.randrange(500):0{r.randrange(1, 40)}}", TEXT),
    "blob": (pa.binary(), lambda r: r.randbytes(r.choice([0, 5, 31, 32, 33, 200])), TEXT),
    "key": (pa.binary(5), lambda r: r.randbytes(5), FIXED),
    "tokens": (pa.list_(pa.int32()), lambda r: [r.randrange(100) for _ in range(r.choice([0, 1, 7, 40]))], INTEGER),
    "words": (
        pa.list_(pa.string()),
        lambda r: [r.choice(["", "a", "word", None]) for _ in range(r.randrange(5))],
        TEXT,
    ),
}
SCHEMA = pa.schema([(name, kind) for name, (kind, _, _) in COLUMNS.items()])


def _rows(n: int, seed: int, nulls: float) -> pa.Table:
    """Random rows; half of them repeat the previous row, to create runs."""
    r = random.Random(seed)
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    for name, (_, value, _) in COLUMNS.items():
        cells = columns[name]
        while len(cells) < n:
            if cells and r.random() < 0.5:
                cells.append(cells[-1])
            else:
                cells.append(None if r.random() < nulls else value(r))
    return pa.table(columns, schema=SCHEMA)


def _leaf(name: str) -> str:
    return f"{name}.list.element" if pa.types.is_list(COLUMNS[name][0]) else name


def _ways() -> Iterator[dict[str, Any]]:
    """Yields combinations of write options."""
    encodings = [
        {_leaf(name): rest[i % len(rest)] for name, (_, _, rest) in COLUMNS.items()} for i in range(2)
    ]  # the two together contain every encoding
    for version in ["1.0", "2.0"]:
        yield {"data_page_version": version, "compression": "snappy"}
        yield {"data_page_version": version, "compression": "zstd", "dictionary_pagesize_limit": 100}
        yield {"data_page_version": version, "compression": "gzip", "use_dictionary": False}
        for encoding, codec in zip(encodings, ["none", "lz4"], strict=True):
            yield {
                "data_page_version": version,
                "compression": codec,
                "use_dictionary": False,
                "column_encoding": encoding,
            }


def _parquet(rows: pa.Table, way: dict[str, Any], page: int) -> bytes:
    out = io.BytesIO()
    pq.write_table(rows, out, data_page_size=page, write_batch_size=64, row_group_size=1 + len(rows) // 2, **way)
    return out.getvalue()


def test_every_encoding(lake: Lake, private: Callable[..., Cache], connect: Connect) -> None:
    table = lake.create("encodings", SCHEMA)
    want: list[pa.Table] = []
    uris: list[str] = []
    for i, way in enumerate(_ways()):
        for nulls, page in [(0, 1 << 20), (0.2, 200), (1, 200)]:
            rows = _rows(700 if nulls < 1 else 20, seed=100 * i + page, nulls=nulls)
            uris.append(lake.write(f"encodings-{i}-{nulls}.parquet", _parquet(rows, way, page)))
            want.append(rows)
    table.add_files(uris)
    cache = private(["--metadata", lake.pin("encodings", table).metadata])
    cache.wait("Ready")
    assert difference(rows_of(connect(cache).table()), rows_of(pa.concat_tables(want))) == ""
    assert 'datacache_load_columns_total{decoder="general"} 0' in cache.get("/metrics")[1]
