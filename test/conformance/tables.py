# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The tables that pyiceberg writes for the tests: one function each, called once per session."""

# pyright: reportCallIssue=false
# pyiceberg's models take positional arguments in a way that type checkers can not see.

from __future__ import annotations

import datetime as dt
import decimal
import io
import itertools
import random
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyiceberg.types as ice
from lake import Builder, Lake
from pyiceberg.expressions import EqualTo, GreaterThanOrEqual, In
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, Transform, TruncateTransform
from values import FLAT, Kind, nested

ROW_GROUP = "write.parquet.row-group-limit"


def plain_rows(n: int, seed: int = 0, first: int = 0) -> pa.Table:
    """The rows of the plain tables: an id, and columns with nulls that every engine reads alike."""
    r = np.random.default_rng([seed, first])

    def nulls(share: float) -> np.ndarray:
        return r.random(n) < share

    day = dt.datetime(2024, 1, 1)
    words = np.array(["ash", "birch", "cedar", "", "fir 1", "fir 2", "Grüße", "it's"])
    return pa.table(
        {
            "id": pa.array(np.arange(first, first + n)),
            "small": pa.array(r.integers(-50, 50, n).astype(np.int32), mask=nulls(0.1)),
            "price": pa.array(np.round(r.normal(10, 5, n), 3), mask=nulls(0.05)),
            "ratio": pa.array((r.integers(0, 1000, n) / 8).astype(np.float32)),
            "flag": pa.array(r.random(n) < 0.3, mask=nulls(0.2)),
            "name": pa.array(words[r.integers(0, len(words), n)], mask=nulls(0.1)),
            "day": pa.array(np.datetime64("2024-01-01") + np.arange(n) * 7 // 24, mask=nulls(0.1)),
            "seen": pa.array([day + dt.timedelta(seconds=int(s)) for s in r.integers(0, 10**8, n)], pa.timestamp("us")),
        }
    )


def plain(lake: Lake) -> Table:
    """Three files with several row groups each: the table of most tests."""
    parts = [plain_rows(n, first=first) for n, first in [(4000, 0), (2500, 4000), (3501, 6500)]]
    return lake.create("plain", parts[0].schema, parts, properties={ROW_GROUP: "1000"})


def one_file(lake: Lake) -> Table:
    """One file, one row group."""
    return lake.create("one_file", plain_rows(1).schema, plain_rows(777, seed=1))


def nine_rows(lake: Lake) -> Table:
    """Nine rows: fewer than some tests have ranks."""
    return lake.create("nine_rows", plain_rows(1).schema, plain_rows(9, seed=2))


def nine_split(lake: Lake) -> Table:
    """The same nine rows in two files."""
    rows = plain_rows(9, seed=2)
    return lake.create("nine_split", rows.schema, [rows.slice(0, 4), rows.slice(4)])


def many_files(lake: Lake) -> Table:
    """Forty small files of different sizes, one of them with a single row."""
    sizes = [1 + 7 * i % 60 for i in range(40)]
    starts = list(itertools.accumulate(sizes, initial=0))
    table = lake.create("many_files", plain_rows(1).schema)
    with table.transaction() as tx:
        for n, first in zip(sizes, starts, strict=False):
            tx.append(plain_rows(n, seed=3, first=first))
    return table


def empty(lake: Lake) -> Table:
    """A snapshot without rows, as all were deleted."""
    table = lake.create("empty", plain_rows(1).schema, plain_rows(50, seed=4))
    table.delete()
    return table


def no_snapshot(lake: Lake) -> Table:
    """A table that was created and never written."""
    return lake.create("no_snapshot", plain_rows(1).schema)


def _typed(kinds: list[Kind], first_id: int = 1) -> Schema:
    return Schema(*[ice.NestedField(first_id + i, k.name, k.iceberg, required=False) for i, k in enumerate(kinds)])


def every_kind() -> list[Kind]:
    """All types that pyiceberg writes, flat and nested."""
    ids = itertools.count(1000)
    return [*FLAT, *nested(lambda: next(ids))]


def typed_rows(kinds: list[Kind], n: int, seed: int, nulls: float) -> pa.Table:
    """n rows with columns of the given kinds; each column starts with its edge cases."""
    r = random.Random(seed)
    return pa.table({k.name: k.column(r, n, nulls) for k in kinds})


def types(lake: Lake) -> Table:
    """All types: with some nulls, without nulls, and a file of only nulls."""
    kinds = every_kind()
    parts = [typed_rows(kinds, 300, 1, 0.2), typed_rows(kinds, 200, 2, 0.0), typed_rows(kinds, 20, 3, 1.0)]
    return lake.create("types", _typed(kinds), parts, properties={ROW_GROUP: "128"})


def types_required(lake: Lake) -> Table:
    """All flat types as required columns, in a table of format version 1."""
    schema = Schema(*[ice.NestedField(i + 1, k.name, k.iceberg, required=True) for i, k in enumerate(FLAT)])
    rows = typed_rows(list(FLAT), 100, 4, 0.0)
    rows = rows.cast(pa.schema([f.with_nullable(False) for f in rows.schema]))
    return lake.create("types_required", schema, rows, properties={"format-version": "1"})


def _partitioned(name: str, field: str, transform: Transform[Any, Any], n: int = 1200) -> Builder:
    def build(lake: Lake) -> Table:
        rows = plain_rows(n, seed=5)
        schema = Schema(
            *[ice.NestedField(i + 1, f.name, _ICEBERG[f.type], required=False) for i, f in enumerate(rows.schema)]
        )
        source = schema.find_field(field).field_id
        spec = PartitionSpec(PartitionField(source, 1000, transform, f"{field}_part"))
        return lake.create(name, schema, [rows.slice(0, n // 2), rows.slice(n // 2)], partition_spec=spec)

    return build


_ICEBERG = {
    pa.int64(): ice.LongType(), pa.int32(): ice.IntegerType(), pa.float64(): ice.DoubleType(),
    pa.float32(): ice.FloatType(), pa.bool_(): ice.BooleanType(), pa.string(): ice.StringType(),
    pa.date32(): ice.DateType(), pa.timestamp("us"): ice.TimestampType(),
}  # fmt: skip


def repartitioned(lake: Lake) -> Table:
    """The partition spec changed between two appends: files of two specs."""
    table = lake.create("repartitioned", plain_rows(1).schema, plain_rows(300, seed=6))
    with table.update_spec() as update:
        update.add_field("name", IdentityTransform())
    table.append(plain_rows(400, seed=6, first=300))
    return table


def evolved(lake: Lake) -> Table:
    """Columns renamed, promoted, moved, added and dropped between appends, at the top and inside a struct."""
    before = pa.schema([
        ("id", pa.int32()), ("old_name", pa.string()), ("gone", pa.int64()), ("ratio", pa.float32()),
        ("cost", pa.decimal128(9, 2)), ("place", pa.struct([("x", pa.int32()), ("note", pa.string())])),
    ])  # fmt: skip
    first = [
        {
            "id": i,
            "old_name": f"n{i}",
            "gone": i,
            "ratio": i / 4,
            "cost": i,
            "place": None if i % 5 == 0 else {"x": i, "note": "a"},
        }
        for i in range(200)
    ]
    table = lake.create("evolved", before, pa.Table.from_pylist(first, before))
    with table.update_schema() as update:
        update.rename_column("old_name", "name")
        update.delete_column("gone")
        update.update_column("id", ice.LongType())
        update.update_column("ratio", ice.DoubleType())
        update.update_column("cost", ice.DecimalType(18, 2))
        update.update_column(("place", "x"), ice.LongType())
        update.rename_column(("place", "note"), "remark")
        update.add_column(("place", "y"), ice.DoubleType())
        update.add_column("extra", ice.StringType())
        update.add_column("gone", ice.StringType())  # the old name for a new column
        update.move_first("extra")
    after = table.schema().as_arrow()
    second = [
        {"extra": f"e{i}", "id": 2**40 + i, "name": f"n{i}", "ratio": 1e300, "cost": 10**12, "gone": "back",
         "place": {"x": 2**40, "remark": None, "y": i / 8}}
        for i in range(200, 350)
    ]  # fmt: skip
    table.append(pa.Table.from_pylist(second, after))
    return table


def history(lake: Lake) -> Table:
    """Two appends, an overwrite, a delete, a new column; a tag on the second snapshot, a branch from the third."""
    parts = [plain_rows(100, seed=7), plain_rows(80, seed=7, first=100)]
    table = lake.create("history", parts[0].schema, parts, properties={ROW_GROUP: "1"})
    table.manage_snapshots().create_tag(_current(table), "two").commit()
    table.overwrite(plain_rows(60, seed=7, first=500), overwrite_filter=GreaterThanOrEqual("id", 150))
    table.manage_snapshots().create_branch(_current(table), "side").commit()
    table.delete(EqualTo("small", 3))
    with table.update_schema() as update:
        update.add_column("later", ice.StringType())
    later = plain_rows(40, seed=7, first=900)
    table.append(later.append_column("later", pa.array(["new"] * 40)))
    table.append(plain_rows(30, seed=7, first=2000).append_column("later", pa.nulls(30, pa.string())), branch="side")
    return table


def _current(table: Table) -> int:
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return snapshot.snapshot_id


def deleted(lake: Lake) -> Table:
    """Rows deleted by pyiceberg, which rewrites files: some files are gone, others have fewer rows."""
    table = lake.create(
        "deleted", plain_rows(1).schema, [plain_rows(300, seed=8, first=300 * i) for i in range(4)],
        properties={ROW_GROUP: "100"},
    )  # fmt: skip
    table.delete(GreaterThanOrEqual("id", 900))
    table.delete(In("id", [0, 1, 2, 350, 899]))
    table.delete(EqualTo("name", "fir 1"))
    return table


def overwritten(lake: Lake) -> Table:
    """All rows were replaced, then some of them again."""
    table = lake.create("overwritten", plain_rows(1).schema, plain_rows(100, seed=9))
    table.overwrite(plain_rows(200, seed=9, first=1000))
    table.overwrite(plain_rows(20, seed=9, first=5000), overwrite_filter=EqualTo("flag", True))
    return table


def foreign(lake: Lake) -> Table:
    """Files from other writers, added unchanged: no field ids, other encodings, pages, codecs and statistics."""
    table = lake.create("foreign", plain_rows(1).schema, plain_rows(100, seed=10))

    def parquet(n: int, first: int, **options: Any) -> bytes:
        out = io.BytesIO()
        pq.write_table(plain_rows(n, seed=10, first=first), out, **options)
        return out.getvalue()

    delta = {"id": "DELTA_BINARY_PACKED", "name": "DELTA_BYTE_ARRAY", "price": "BYTE_STREAM_SPLIT"}
    files = {
        "v2.parquet": parquet(500, 100, data_page_version="2.0", compression="zstd", row_group_size=120),
        "plain.parquet": parquet(400, 600, use_dictionary=False, compression="none", write_statistics=False),
        "delta.parquet": parquet(400, 1000, use_dictionary=False, column_encoding=delta, compression="lz4"),
        "pages.parquet": parquet(600, 1400, data_page_size=512, compression="gzip", write_page_index=True),
        "brotli.parquet": parquet(100, 2000, compression="brotli", dictionary_pagesize_limit=64),
    }
    table.add_files([lake.write(name, content) for name, content in files.items()])
    return table


def foreign_duckdb(lake: Lake) -> Table:
    """A file from DuckDB's writer, added unchanged."""
    table = lake.create("foreign_duckdb", plain_rows(1).schema)
    rows = plain_rows(1000, seed=11)
    path = lake.folder / "duckdb.parquet"
    with duckdb.connect() as db:
        db.register("rows", rows)
        db.execute(f"COPY rows TO '{path}' (FORMAT parquet, ROW_GROUP_SIZE 2048, PARQUET_VERSION V2)")
    table.add_files([lake.write("duckdb.parquet", path.read_bytes())])
    return table


def wide_values(lake: Lake) -> Table:
    """Rows far larger than a batch among tiny ones: single values of 6 MB, and null."""
    sizes = [0, 10, 6_000_000, 0, 100, 3_000_000, 3_000_000, 5, 9_000_000, 1] + [1000] * 500
    rows = pa.table({
        "id": pa.array(range(len(sizes)), pa.int64()),
        "blob": pa.array([bytes([i % 251]) * n if n else None for i, n in enumerate(sizes)], pa.binary()),
    })  # fmt: skip
    return lake.create("wide_values", rows.schema, rows)


def random_table(seed: int) -> Builder:
    """Random types, sizes, nulls, files, row groups, pages and codecs, all determined by the seed."""

    def build(lake: Lake) -> Table:
        r = random.Random(seed)
        kinds = r.sample(every_kind(), r.randint(1, 12))
        parts = [
            typed_rows(
                kinds, r.choice([0, 1, 2, 63, 64, 65, 500, 1000]), r.randrange(10**9), r.choice([0, 0.01, 0.3, 1.0])
            )
            for _ in range(r.randint(2, 6))
        ]
        properties = {
            ROW_GROUP: str(r.choice([7, 16, 64, 100, 10_000])),
            "write.parquet.page-row-limit": str(r.choice([5, 64, 20_000])),
            "write.parquet.compression-codec": r.choice(["zstd", "snappy", "gzip", "uncompressed", "lz4"]),
            "write.parquet.dict-size-bytes": str(r.choice([1, 64, 2**20])),
            "format-version": r.choice(["1", "2"]),
        }
        return lake.create(f"random_{seed}", _typed(kinds), parts, properties=properties)

    return build


def evolving_table(seed: int) -> Builder:
    """Columns added, dropped, renamed, widened and moved between appends and deletes, all determined by the seed."""

    def build(lake: Lake) -> Table:
        r = random.Random(seed)
        columns = [ice.NestedField(1, "id", ice.LongType(), required=False)]
        columns += [
            ice.NestedField(2 + i, f"c{i}", r.choice(_EVOLVING)(), required=False) for i in range(r.randint(2, 6))
        ]
        spec = PartitionSpec()
        if r.random() < 0.5 and not isinstance(columns[1].field_type, ice.StructType):
            spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "part"))
        properties = {ROW_GROUP: str(r.choice([5, 20, 1000])), "format-version": r.choice(["1", "2"])}
        table = lake.create(f"evolving_{seed}", Schema(*columns), partition_spec=spec, properties=properties)
        written = 0
        for step in range(r.randint(4, 10)):
            change = r.choice([None, None, _widen, _add, _drop, _rename, _move]) if step else None
            if change:
                change(r, table, step, {f.source_id for f in spec.fields})
                continue
            schema, n = table.schema().as_arrow(), r.choice([1, 7, 20])
            rows = [
                {f.name: first if f.name == "id" else _value(r, f.type) for f in schema}
                for first in range(written, written + n)
            ]
            table.append(pa.Table.from_pylist(rows, schema))
            written += n
            if r.random() < 0.2:
                table.delete(EqualTo("id", r.randrange(written)))
        return table

    return build


def _pair() -> ice.StructType:
    return ice.StructType(
        ice.NestedField(1000, "x", ice.IntegerType(), required=False),
        ice.NestedField(1001, "y", ice.FloatType(), required=False),
    )


_EVOLVING = [
    ice.IntegerType, ice.FloatType, lambda: ice.DecimalType(9, 2), ice.StringType, ice.DateType, ice.LongType,
    ice.DoubleType, _pair,
]  # fmt: skip


def _value(r: random.Random, typ: pa.DataType) -> Any:
    if r.random() < 0.15:
        return None
    if pa.types.is_struct(typ):
        return {f.name: _value(r, f.type) for f in typ}
    if pa.types.is_decimal(typ):
        return decimal.Decimal(r.choice([-999, 0, 1, 10**7, r.randrange(10**6)])).scaleb(-2)
    if pa.types.is_date(typ):
        return dt.date(1969, 12, 30) + dt.timedelta(days=r.randrange(5))
    if pa.types.is_floating(typ):
        return r.choice([-2.5, 0.0, 0.5, 1e-40, 1e30, r.random()])
    if pa.types.is_integer(typ):
        return r.choice([-(2**31), -1, 0, 1, 2**31 - 1] + [2**40] * (typ.bit_width == 64))
    return r.choice(["", "a", "aa", "ü"])


def _widen(r: random.Random, table: Table, step: int, partitioned: set[int]) -> None:
    wider: list[tuple[ice.IcebergType, ice.IcebergType]] = [
        (ice.IntegerType(), ice.LongType()),
        (ice.FloatType(), ice.DoubleType()),
        (ice.DecimalType(9, 2), ice.DecimalType(20, 2)),
    ]
    schema = table.schema()
    names = [(n, to) for n in schema.column_names for old, to in wider if schema.find_field(n).field_type == old]
    if names:
        name, to = r.choice(names)
        with table.update_schema() as update:
            update.update_column(tuple(name.split(".")), to)


def _add(r: random.Random, table: Table, step: int, partitioned: set[int]) -> None:
    with table.update_schema() as update:
        update.add_column(f"added{step}", r.choice(_EVOLVING[:5])())


def _drop(r: random.Random, table: Table, step: int, partitioned: set[int]) -> None:
    names = [f.name for f in table.schema().fields if f.name != "id" and f.field_id not in partitioned]
    if names:
        with table.update_schema() as update:
            update.delete_column(r.choice(names))


def _rename(r: random.Random, table: Table, step: int, partitioned: set[int]) -> None:
    names = [f.name for f in table.schema().fields if f.name != "id" and f.field_id not in partitioned]
    if names:
        with table.update_schema() as update:
            update.rename_column(r.choice(names), f"renamed{step}")


def _move(r: random.Random, table: Table, step: int, partitioned: set[int]) -> None:
    with table.update_schema() as update:
        update.move_first(r.choice([f.name for f in table.schema().fields]))


BY_NAME: dict[str, Builder] = {
    f.__name__: f
    for f in (plain, one_file, nine_rows, nine_split, many_files, empty, no_snapshot, types, types_required,
              repartitioned, evolved, history, deleted, overwritten, foreign, foreign_duckdb, wide_values)
} | {
    "by_identity": _partitioned("by_identity", "name", IdentityTransform()),
    "by_bucket": _partitioned("by_bucket", "id", BucketTransform(4)),
    "by_day": _partitioned("by_day", "seen", DayTransform(), 60),
    "by_truncate": _partitioned("by_truncate", "small", TruncateTransform(20)),
}  # fmt: skip

#: Tables whose rows are exactly those of their Parquet files, so DuckDB can read the expected rows without Iceberg.
READ_AS_FILES = (
    "plain",
    "one_file",
    "nine_rows",
    "nine_split",
    "many_files",
    "overwritten",
    "foreign",
    "foreign_duckdb",
)
