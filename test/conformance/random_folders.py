# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Random folders of Parquet files as pyarrow, DuckDB, polars, Spark and datasets write them.

random_folders.py WRITER ROOT COUNT SEED, run in the writer's environment, writes COUNT folders ROOT/0, ROOT/1 and so
on; of datasets also ROOT/0.arrow and so on, with the rows that its load_dataset reads.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import datetime as dt
import os
import random
import string
import sys
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

Make = Callable[[random.Random], Any]
Maker = tuple[str, pa.DataType, Make]  # the name of a column, its type, and a function that makes a value
Write = Callable[[random.Random, Path, pa.Table], None]


def _integers(bits: int, signed: bool) -> Make:
    low = -(1 << bits - 1) if signed else 0
    return lambda r: r.randrange(low, low + (1 << bits))


def _clock(step: int) -> Make:
    """Times of day in whole steps of microseconds."""
    return lambda r: dt.time(r.randrange(24), r.randrange(60), r.randrange(60), r.randrange(10**6 // step) * step)


def _stamps(step: int, zone: dt.tzinfo | None = None) -> Make:
    """Times in whole steps of microseconds."""
    start = dt.datetime(2000, 1, 1, tzinfo=zone)
    return lambda r: start + dt.timedelta(microseconds=r.randrange(10**15 // step) * step)


def _words(letters: str, longest: int) -> Make:
    return lambda r: "".join(r.choices(letters, k=r.randrange(longest)))


MAKERS: list[Maker] = [
    ("bool", pa.bool_(), lambda r: r.random() < 0.5),
    *[(f"int{bits}", getattr(pa, f"int{bits}")(), _integers(bits, True)) for bits in (8, 16, 32, 64)],
    *[(f"uint{bits}", getattr(pa, f"uint{bits}")(), _integers(bits, False)) for bits in (8, 16, 32, 64)],
    ("float16", pa.float16(), lambda r: float(r.randrange(-2048, 2048)) / 8),
    ("float32", pa.float32(), lambda r: float(r.randrange(-(1 << 20), 1 << 20)) / 16),
    ("float64", pa.float64(), lambda r: r.uniform(-1e9, 1e9)),
    ("decimal9", pa.decimal128(9, 2), lambda r: Decimal(r.randrange(-(10**9) + 1, 10**9)).scaleb(-2)),
    ("decimal38", pa.decimal128(38, 5), lambda r: Decimal(r.randrange(-(10**20), 10**20)).scaleb(-5)),
    ("date", pa.date32(), lambda r: dt.date(1970, 1, 1) + dt.timedelta(days=r.randrange(-30_000, 30_000))),
    ("time_ms", pa.time32("ms"), _clock(1000)),
    ("time_us", pa.time64("us"), _clock(1)),
    ("stamp_ms", pa.timestamp("ms"), _stamps(1000)),
    ("stamp_us", pa.timestamp("us"), _stamps(1)),
    ("stamp_ns", pa.timestamp("ns"), lambda r: r.randrange(10**18)),
    ("stamp_utc", pa.timestamp("us", "UTC"), _stamps(1, dt.UTC)),
    ("stamp_berlin", pa.timestamp("ms", "Europe/Berlin"), _stamps(1000, dt.UTC)),
    ("duration", pa.duration("ms"), lambda r: dt.timedelta(milliseconds=r.randrange(-(10**9), 10**9))),
    ("vector", pa.list_(pa.float32(), 3), lambda r: [r.randrange(100) / 4 for _ in range(3)]),
    ("pixels", pa.list_(pa.field("element", pa.uint8(), nullable=False), 4), lambda r: list(r.randbytes(4))),
    ("points", pa.list_(pa.list_(pa.float16(), 2)), lambda r: [[0.5 * i, 1.0] for i in range(r.randrange(3))]),
    ("pages", pa.list_(pa.list_(pa.float16(), 3), 2), lambda r: [[r.randrange(99) / 8] * 3, [0.5, 1.0, 2.0]]),
    ("uuid", pa.uuid(), lambda r: uuid.UUID(int=r.getrandbits(128)).bytes),
    ("json", pa.json_(), lambda r: f'{{"a": {r.randrange(99)}}}'),
    ("string", pa.string(), _words(string.ascii_letters + "äß日", 12)),
    ("large", pa.large_string(), _words(string.ascii_letters, 30)),
    ("binary", pa.binary(), lambda r: r.randbytes(r.randrange(9))),
    ("fixed", pa.binary(5), lambda r: r.randbytes(5)),
    ("list", pa.list_(pa.float32()), lambda r: [r.randrange(100) / 4 for _ in range(r.randrange(5))]),
    ("lists", pa.list_(pa.list_(pa.int16())), lambda r: [[r.randrange(9)] * i for i in range(r.randrange(4))]),
    ("struct", pa.struct([("a", pa.uint16()), ("b", pa.string())]), lambda r: {"a": r.randrange(9), "b": "b"}),
    ("map", pa.map_(pa.string(), pa.int32()), lambda r: [(f"k{i}", i) for i in range(r.randrange(3))]),
]


def rows(r: random.Random, n: int, makers: list[Maker]) -> pa.Table:
    """Rows with some columns; a tenth of the values is null."""
    return pa.table({
        name: pa.array([None if r.random() < 0.1 else make(r) for _ in range(n)], of) for name, of, make in makers
    })  # fmt: skip


def with_pyarrow(r: random.Random, path: Path, table: pa.Table) -> None:
    """Writes one file."""
    pq.write_table(
        table, path, row_group_size=r.randrange(1, 90), compression=r.choice(["snappy", "zstd", "none", "gzip"]),
        use_dictionary=r.random() < 0.5, data_page_version=r.choice(["1.0", "2.0"]),
        data_page_size=r.choice([99, 1 << 20]),
    )  # fmt: skip


def with_duckdb(r: random.Random, path: Path, table: pa.Table) -> None:
    """Writes one file."""
    import duckdb

    with duckdb.connect() as db:
        db.execute("SET threads TO 1")
        db.register("made", table)
        codec = r.choice(["snappy", "zstd", "uncompressed", "lz4_raw", "brotli"])
        version = r.choice(["V1", "V2"])
        db.execute(
            f"COPY made TO '{path}' (FORMAT parquet, CODEC '{codec}', PARQUET_VERSION {version}, ROW_GROUP_SIZE 50)"
        )


def with_polars(r: random.Random, path: Path, table: pa.Table) -> None:
    """Writes one file."""
    import polars

    frame = polars.from_arrow(table)
    assert isinstance(frame, polars.DataFrame)
    codec = r.choice(["lz4", "uncompressed", "snappy", "gzip", "brotli", "zstd"])
    size = r.randrange(1, 90)
    frame.write_parquet(path, compression=codec, row_group_size=size, statistics=r.random() < 0.5, data_page_size=99)


# The writers of files, with the columns of MAKERS that they do not take from Arrow, or write wrongly: DuckDB gives null
# lists of fixed length values.
FILES: dict[str, tuple[Write, set[str]]] = {
    "pyarrow": (with_pyarrow, set()),
    "duckdb": (with_duckdb, {"float16", "duration", "vector", "pixels", "points", "pages"}),
    "polars": (with_polars, {"time_ms", "duration", "points", "pages", "uuid", "json", "fixed", "map"}),
}
_INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32()]


def write_files(writer: str, folder: Path, seed: int) -> None:
    """A folder with random names, columns and row groups; a column "changing" has other types in other files."""
    r = random.Random(f"{writer} {seed}")
    write, lacks = FILES[writer]
    partitioned = r.random() < 0.5
    makers = r.sample([m for m in MAKERS if m[0] not in lacks], r.randrange(1, 6))
    kinds = r.choice([[], [], _INTEGERS, _INTEGERS, [pa.float32(), pa.float64()], [pa.int32(), pa.string()]])
    for _ in range(r.randrange(1, 12)):
        table = rows(r, r.choice([0, 1, r.randrange(200)]), [m for m in makers if r.random() < 0.8] or makers[:1])
        if kinds:
            values = pa.array([r.choice([None, r.randrange(100)]) for _ in range(table.num_rows)], pa.int8())
            table = table.append_column("changing", values.cast(r.choice(kinds)))
        name = "".join(r.choices(string.ascii_letters + "-0123456789 %+", k=r.randrange(1, 9)))
        above = f"p={r.randrange(3)}/" if partitioned else r.choice(["", "", "x/", "x/y/"])
        path = folder / above / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        write(r, path, table)


_SPARK = {
    "bool": "boolean", "int8": "tinyint", "int16": "smallint", "int32": "int", "int64": "bigint", "float32": "float",
    "float64": "double", "decimal9": "decimal(9, 2)", "decimal38": "decimal(38, 5)", "date": "date",
    "stamp_us": "timestamp_ntz", "stamp_utc": "timestamp", "string": "string", "binary": "binary",
    "list": "array<float>", "lists": "array<array<smallint>>", "struct": "struct<a: int, b: string>",
    "map": "map<string, int>",
}  # fmt: skip


def write_by_spark(root: Path, count: int, seed: int) -> None:
    """Folders to which Spark appended some times, partitioned by a text, by a number, or not at all."""
    from pyspark.sql import SparkSession

    os.environ["TZ"] = "UTC"
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    settings = {"driver.bindAddress": "127.0.0.1", "driver.host": "127.0.0.1", "driver.memory": "1g"}
    for key, value in {**settings, "sql.session.timeZone": "UTC", "ui.showConsoleProgress": "false"}.items():
        builder = builder.config(f"spark.{key}", value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    makers = [m for m in MAKERS if m[0] in _SPARK]
    for i in range(count):
        r = random.Random(f"spark {seed + i}")
        some, key = r.sample(makers, r.randrange(1, 6)), r.choice(["", "text", "number"])
        spark.conf.set("spark.sql.parquet.writeLegacyFormat", r.choice(["true", "false"]))
        spark.conf.set("spark.sql.parquet.outputTimestampType", r.choice(["INT96", "TIMESTAMP_MICROS"]))
        for _ in range(r.randrange(1, 4)):
            columns = [m for m in some if r.random() < 0.8] or some[:1]
            table = rows(r, r.randrange(150), columns)
            values = [
                [dict(v) if name == "map" and v is not None else v for v in table[name].to_pylist()]
                for name in table.column_names
            ]
            schema = [f"{name} {_SPARK[name]}" for name in table.column_names]
            if key:
                choices = ["a/b", "c d", "ü=%", None] if key == "text" else [1, -7, 30, None]
                values.append([r.choice(choices) for _ in range(table.num_rows)])
                schema.append(f"p {'string' if key == 'text' else 'int'}")
            frame = spark.createDataFrame(list(zip(*values, strict=True)), ", ".join(schema)).coalesce(r.choice([1, 2]))
            writer = frame.write.mode("append").option("compression", r.choice(["snappy", "gzip", "zstd", "lz4_raw"]))
            (writer.partitionBy("p") if key else writer).parquet(str(root / str(i)))
    spark.stop()


def write_by_datasets(root: Path, count: int, seed: int) -> None:
    """Folders with a data set in shards, as push_to_hub names them, and what load_dataset reads of them."""
    import datasets
    from datasets import Array2D, ClassLabel, Dataset, Features, List, Value

    kinds: dict[str, tuple[Any, Make]] = {
        "id": (Value("int64"), lambda r: r.randrange(1 << 40)),
        "label": (ClassLabel(names=["no", "yes"]), lambda r: r.randrange(2)),
        "text": (Value("string"), lambda r: "text " * r.randrange(9)),
        "large": (Value("large_string"), lambda r: "ä" * r.randrange(9)),
        "grid": (Array2D((2, 3), "float32"), lambda r: [[r.randrange(9) / 4] * 3, [1.0, 2.0, 3.0]]),
        "vector": (List(Value("float32"), length=3), lambda r: [0.5, 1.0, r.randrange(9) / 4]),
        "tokens": (List(Value("uint16")), lambda r: [r.randrange(1 << 16) for _ in range(r.randrange(5))]),
        "pair": ({"a": Value("int8"), "b": List(Value("string"))}, lambda r: {"a": r.randrange(99), "b": ["x", None]}),
        "flag": (Value("bool"), lambda r: r.random() < 0.5),
        "at": (Value("timestamp[s]"), lambda r: dt.datetime(2026, 1, 1) + dt.timedelta(seconds=r.randrange(10**9))),
        "day": (Value("date32"), lambda r: dt.date(2026, 1, r.randrange(1, 31))),
        "half": (Value("float16"), lambda r: r.randrange(99) / 8),
        "bytes": (Value("binary"), lambda r: r.randbytes(r.randrange(9))),
    }
    for i in range(count):
        r = random.Random(f"datasets {seed + i}")
        some = r.sample(sorted(kinds), r.randrange(1, 7))
        n, shards = r.randrange(4, 200), r.randrange(1, 5)
        columns = {name: [kinds[name][1](r) if r.random() < 0.9 else None for _ in range(n)] for name in some}
        made = Dataset.from_dict(columns, Features({name: kinds[name][0] for name in some}))
        folder = root / str(i) / r.choice(["", "data"])
        folder.mkdir(parents=True)
        for k in range(shards):
            name = f"train-{k:05}-of-{shards:05}.parquet"
            made.shard(shards, k, contiguous=True).to_parquet(folder / name, batch_size=r.choice([10, 1000]))
        loaded = datasets.load_dataset(str(root / str(i)), split="train", cache_dir=str(root / "cache"))
        table = loaded.data.table
        for at, field in enumerate(table.schema):
            if isinstance(field.type, pa.ExtensionType):
                storage = [chunk.storage for chunk in table.column(at).chunks]
                table = table.set_column(at, field.name, pa.chunked_array(storage, field.type.storage_type))
        with pa.ipc.new_file(root / f"{i}.arrow", table.schema) as out:
            out.write_table(table)


def main() -> None:
    """Writes the folders."""
    writer, root, count, seed = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    if writer == "spark":
        write_by_spark(root, count, seed)
    elif writer == "datasets":
        write_by_datasets(root, count, seed)
    else:
        for i in range(count):
            write_files(writer, root / str(i), seed + i)


if __name__ == "__main__":
    main()
