# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Folders of Parquet files as pyarrow and DuckDB write them, and their rows as pyarrow.dataset and DuckDB read them."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from random_folders import MAKERS, rows

Folder = Callable[[Path], None]


def scan(folder: Path) -> pa.Table:
    """The rows in the order of pyarrow.dataset, with the columns of all files and those of the folders' names."""
    hive = ds.partitioning(flavor="hive")
    found = ds.dataset(folder, format="parquet", partitioning=hive, exclude_invalid_files=False)
    schemas = [pq.read_schema(path) for path in found.files]
    schema = pa.unify_schemas(schemas, promote_options="permissive")
    for field in found.schema:
        if field.name not in schema.names:
            schema = schema.append(field)
    return ds.dataset(folder, schema, format="parquet", partitioning=hive, exclude_invalid_files=False).to_table()


def scan_by_duckdb(folder: Path) -> pa.Table:
    """The rows in DuckDB's order, of the same files."""
    files = ds.dataset(folder, format="parquet", exclude_invalid_files=False).files
    with duckdb.connect() as db:
        db.execute("SET threads TO 1")
        db.execute("SET TimeZone = 'UTC'")
        rows = "SELECT * FROM read_parquet($1, union_by_name = true, hive_partitioning = true)"
        return db.sql(rows, params=[files]).to_arrow_table()


def write(folder: Path, name: str, table: pa.Table, **options: Any) -> None:
    """Writes one file, and the folders above it."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, **options)


def numbers(first: int, n: int) -> pa.Table:
    """Rows with an id, a text and a list."""
    ids = range(first, first + n)
    return pa.table({
        "id": pa.array(ids, pa.int64()),
        "text": pa.array([None if i % 7 == 3 else f"row {i}" for i in ids]),
        "tokens": pa.array([[i + k for k in range(i % 5)] for i in ids], pa.list_(pa.int32())),
    })  # fmt: skip


def names_in_byte_order(folder: Path) -> None:
    """Paths whose order differs by case, by length, by numbers and between a folder and a file."""
    names = ["b.parquet", "B.parquet", "part-10.parquet", "part-9.parquet", "a/z.parquet", "a.parquet", "a-1/x.parquet"]
    for i, name in enumerate([*names, "ä.parquet", "a b.parquet", "a%20b.parquet"]):
        write(folder, name, numbers(i * 100, 50 + i), row_group_size=20)


def left_out(folder: Path) -> None:
    """Files that are no part of the table beside those that are, one of them without rows."""
    for i in range(3):
        write(folder, f"part-{i}.parquet", numbers(i * 100, 40))
    write(folder, "part-1a.parquet", numbers(0, 0))
    write(folder, "_spare.parquet", numbers(0, 5))
    write(folder, ".part-0.parquet.crc", numbers(0, 5))
    write(folder, "_old/part-0.parquet", numbers(0, 5))
    (folder / "_SUCCESS").write_bytes(b"")
    (folder / "_metadata").write_bytes(b"no rows")


def by_day(folder: Path) -> None:
    """Folder names with integers, with texts that need escapes and with nulls."""
    for i, (n, text) in enumerate(
        [("1", "a%2Fb"), ("1", "plain"), ("-5", "x y"), ("20", "__HIVE_DEFAULT_PARTITION__")]
    ):
        write(folder, f"n={n}/text%3D={text}/f.parquet", numbers(i * 10, 7).select(["id"]))


def by_date(folder: Path) -> None:
    """Folder names that are dates, which pyarrow.dataset reads as texts."""
    for day in range(1, 5):
        write(folder, f"day=2026-02-{day:02}/f.parquet", numbers(day * 10, 7))


def evolved(folder: Path) -> None:
    """Files whose columns came later, went, became wider, or were all null."""
    write(folder, "1.parquet", pa.table({"id": pa.array([1, 2], pa.int32()), "x": pa.array([1.5, None], pa.float32())}))
    write(folder, "2.parquet", pa.table({"id": pa.array([3], pa.int64()), "new": ["n"], "x": pa.nulls(1)}))
    inner = pa.struct([("a", pa.int8()), ("b", pa.string())])
    write(folder, "3.parquet", pa.table({"id": pa.array([4], pa.int16()), "s": pa.array([{"a": 1, "b": "b"}], inner)}))
    wider = pa.struct([("a", pa.int32()), ("b", pa.string())])
    late = {"id": pa.array([5], pa.uint8()), "s": pa.array([{"a": 70_000, "b": None}], wider)}
    write(folder, "4.parquet", pa.table(late | {"x": pa.array([0.1], pa.float64())}))


def required(folder: Path) -> None:
    """A column that is required in every file, and one that is required in one of them."""
    for i, nullable in enumerate([False, True, False]):
        fields = [pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.int32(), nullable=nullable)]
        values = [7, None if nullable else 8]
        write(folder, f"{i}.parquet", pa.table([[i, i + 1], values], schema=pa.schema(fields)))


def duck(folder: Path) -> None:
    """A folder that DuckDB wrote, by partitions."""
    with duckdb.connect() as db:
        db.execute("SET threads TO 1")
        rows = "SELECT i AS id, i % 3 AS part, 'v' || i AS text, i::DECIMAL(12, 2) / 4 AS price, i::UTINYINT AS small"
        db.execute(
            f"COPY ({rows}, DATE '2026-01-01' + (i % 90)::INT AS day, [i, i + 1] AS pair FROM range(200) t(i)) "
            f"TO '{folder}' (FORMAT parquet, PARTITION_BY (part), OVERWRITE_OR_IGNORE)"
        )


def duck_files(folder: Path) -> None:
    """Several files of DuckDB in one folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with duckdb.connect() as db:
        for i, codec in enumerate(["zstd", "snappy", "uncompressed"]):
            nested = "{'a': i, 'b': 'b' || i} AS s, MAP {'k': i} AS m"
            rows = f"SELECT i, i * 1.5 AS x, {nested} FROM range({i * 50}, {i * 50 + 77}) t(i)"
            db.execute(f"COPY ({rows}) TO '{folder / f'{i}.parquet'}' (FORMAT parquet, CODEC '{codec}')")


def many_row_groups(folder: Path) -> None:
    """Row groups of 10 rows in files of several versions of the format."""
    for i, version in enumerate(["1.0", "2.4", "2.6"]):
        write(folder, f"{i}/f.parquet", numbers(i * 1000, 105), row_group_size=10, version=version)


def types(folder: Path) -> None:
    """A column of each type that Parquet and Arrow share."""
    for i in range(2):
        write(folder, f"{i}.parquet", every_type(random.Random(i), 60), row_group_size=25)


def every_type(r: random.Random, n: int) -> pa.Table:
    """Rows with a column of each type."""
    words = pa.array([r.choice(["ash", "birch", None]) for _ in range(n)]).dictionary_encode()
    numbers = pa.array(
        [None if r.random() < 0.1 else [float(i) for i in range(6)] for _ in range(n)], pa.list_(pa.float32(), 6)
    )
    tensors = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.float32(), (2, 3), permutation=[1, 0]), numbers)
    return rows(r, n, MAKERS).append_column("dictionary", words).append_column("tensor", tensors)


FOLDERS: dict[str, Folder] = {
    f.__name__: f
    for f in (
        names_in_byte_order,
        left_out,
        by_day,
        by_date,
        evolved,
        required,
        duck,
        duck_files,
        many_row_groups,
        types,
    )
}
