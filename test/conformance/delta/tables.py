# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The Delta tables that check_rows.py reads; runs in an environment of its own (hack/python/delta.txt).

tables.py JARS FOLDER SEED COUNT writes COUNT tables with random operations by delta-rs (the package deltalake) and some
by Delta's library for Spark. It reads every version of each with delta-rs, and lists them with the files of their rows
in FOLDER/made.json.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import datetime as dt
import json
import random
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from pyspark.sql import SparkSession

Step = Callable[[], Any]


def rows(r: random.Random, n: int, wide: bool) -> pa.Table:
    """Random rows of most types; wide tables have two more columns."""

    def some(make: Callable[[], Any], kind: pa.DataType) -> pa.Array:
        return pa.array([None if r.random() < 0.2 else make() for _ in range(n)], kind)

    def moment() -> dt.datetime:
        return dt.datetime(2026, 1, 1) + dt.timedelta(microseconds=r.randrange(10**13))

    columns = {
        "id": pa.array([r.randrange(1000) for _ in range(n)], pa.int64()),
        "part": some(lambda: r.choice(["a", "b c", "ü/%=", "7"]), pa.string()),
        "day": some(lambda: dt.date(2026, 1, r.randint(1, 3)), pa.date32()),
        "small": some(lambda: r.randint(-128, 127), pa.int8()),
        "short": some(lambda: r.randint(-(2**15), 2**15 - 1), pa.int16()),
        "int": some(lambda: r.randint(-(2**31), 2**31 - 1), pa.int32()),
        "half": some(r.random, pa.float32()),
        "double": some(lambda: r.gauss(0, 1e9), pa.float64()),
        "flag": some(lambda: r.random() < 0.5, pa.bool_()),
        "bytes": some(lambda: r.randbytes(r.randrange(9)), pa.binary()),
        "price": some(lambda: Decimal(r.randint(-(10**9), 10**9)).scaleb(-3), pa.decimal128(20, 3)),
        # delta-rs 1.6 writes negative decimals among the values of partition columns so that it can't read them itself
        "cost": some(lambda: Decimal(r.randint(0, 10**9)).scaleb(-3), pa.decimal128(20, 3)),
        "at": some(lambda: moment().replace(tzinfo=dt.UTC), pa.timestamp("us", "UTC")),
        "local": some(moment, pa.timestamp("us")),
        "tokens": some(lambda: [r.choice([None, 1, 2**31 - 1]) for _ in range(r.randrange(4))], pa.list_(pa.int32())),
        "pair": some(
            lambda: {"x": r.choice([None, 1]), "y": [r.choice("ab")]},
            pa.struct([("x", pa.int64()), ("y", pa.list_(pa.string()))]),
        ),
        "counts": some(lambda: [(k, r.random()) for k in r.sample("xyz", 2)], pa.map_(pa.string(), pa.float64())),
    }
    if wide:
        columns["later"] = some(lambda: r.choice(["p", "q"]), pa.string())
        columns["more"] = some(lambda: r.randrange(9), pa.int64())
    return pa.table(columns)


def by_delta_rs(path: Path, seed: int) -> None:
    """Writes a table with random operations, each of which is a version."""
    r = random.Random(seed)
    at = str(path)
    keys = r.choice([[], ["part"], ["day"], ["part", "day"], ["at"], ["small", "flag"], ["cost"], ["double"]])
    write_deltalake(at, rows(r, 30, False), partition_by=keys or None)
    write_deltalake(at, rows(r, 5, False), mode="append")  # so that there is a version to go back to

    def some(n: int) -> pa.Table:
        return rows(r, n, "more" in [field.name for field in DeltaTable(at).schema().fields])

    def merge() -> None:
        merged = DeltaTable(at).merge(some(10), "s.id = t.id AND s.id % 7 = 0", source_alias="s", target_alias="t")
        merged.when_matched_delete().when_not_matched_insert_all().execute()

    def compact() -> None:
        DeltaTable(at).optimize.compact()

    def widen() -> None:
        write_deltalake(at, rows(r, 9, True), mode="append", schema_mode="merge")

    steps: list[Step] = [
        lambda: write_deltalake(at, some(r.randrange(1, 40)), mode="append"),
        lambda: write_deltalake(at, some(20), mode="append", target_file_size=1),
        lambda: write_deltalake(at, some(20), mode="overwrite"),
        lambda: DeltaTable(at).delete("id % 3 = 0"),
        lambda: DeltaTable(at).delete("flag"),
        lambda: DeltaTable(at).update(updates={"short": "7", "part": "'a'"}, predicate="id % 4 = 1"),
        compact,
        lambda: DeltaTable(at).restore(0),
        lambda: DeltaTable(at).create_checkpoint(),
        merge,
        widen,
    ]
    for _ in range(r.randint(2, 8)):
        r.choice(steps)()
    if r.random() < 0.2:  # then readers start from a checkpoint, not from commit 0
        table = DeltaTable(at)
        table.create_checkpoint()
        for version in range(table.version()):
            (path / "_delta_log" / f"{version:020}.json").unlink()
        write_deltalake(at, some(5), mode="append")


SPARK = {
    "all": [
        "'delta.enableDeletionVectors'='true'",
        "'delta.columnMapping.mode'='name'",
        "'delta.checkpointPolicy'='v2'",
        "'delta.checkpointInterval'='3'",
    ],
    "by_id": ["'delta.columnMapping.mode'='id'"],
    "parts": ["'delta.checkpointInterval'='2'", "'delta.enableInCommitTimestamps'='true'"],
}


def by_spark(jars: Path, folder: Path) -> list[Path]:
    """Writes the tables of SPARK: inserts, deletes, updates, merges, columns that are renamed, dropped and added."""
    settings = {
        "spark.jars": ",".join(str(jar) for jar in sorted(jars.glob("*.jar")) if not jar.name.startswith("scala")),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
    builder = SparkSession.builder.master("local[2]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    for name, properties in SPARK.items():
        table = f"delta.`{folder / name}`"
        parts = "4" if name == "parts" else "1000000"
        spark.conf.set("spark.databricks.delta.checkpoint.partSize", parts)
        spark.sql(
            f"CREATE TABLE {table} (id BIGINT, part STRING, v ARRAY<INT>, s STRUCT<x: STRING, y: DECIMAL(9, 2)>,"
            f" at TIMESTAMP) USING delta PARTITIONED BY (part, at) TBLPROPERTIES ({', '.join(properties)})"
        )
        insert = (
            "INSERT INTO {table} SELECT id, if(id % 3 = 0, null, concat('ü ', id % 2)),"
            " array(1, null, cast(id AS INT)),"
            " named_struct('x', cast(id AS STRING), 'y', cast(id / 4 AS DECIMAL(9, 2))),"
            " timestamp_seconds(id % 2) FROM range({first}, {last})"
        )
        spark.sql(insert.format(table=table, first=0, last=40))
        spark.sql(f"DELETE FROM {table} WHERE id % 5 = 2")
        spark.sql(insert.format(table=table, first=40, last=60))
        spark.sql(f"DELETE FROM {table} WHERE id IN (1, 41)")
        spark.sql(f"UPDATE {table} SET v = null WHERE id = 3")
        spark.sql(
            f"MERGE INTO {table} t USING (SELECT id FROM range(50, 70)) s ON t.id = s.id WHEN MATCHED THEN DELETE"
        )
        if "columnMapping" in str(properties):
            spark.sql(f"ALTER TABLE {table} RENAME COLUMN v TO tokens")
            spark.sql(f"ALTER TABLE {table} RENAME COLUMN s.x TO text")
            spark.sql(f"ALTER TABLE {table} RENAME COLUMN part TO key")
            spark.sql(f"ALTER TABLE {table} DROP COLUMN s.y")
            spark.sql(f"ALTER TABLE {table} ADD COLUMN v INT FIRST")
        spark.sql(f"OPTIMIZE {table}")
    spark.stop()
    return [folder / name for name in SPARK]


def main() -> None:
    """Writes the tables and the rows of their versions."""
    jars, folder, seed, count = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    tables = by_spark(jars, folder)
    for n in range(count):
        tables.append(folder / f"random-{seed + n}")
        by_delta_rs(tables[-1], seed + n)
    made = []
    for table in tables:
        first = min(int(f.name[:20]) for f in (table / "_delta_log").glob("*.json"))
        for version in range(first, DeltaTable(table).version() + 1):
            file = folder / f"{table.name}-{version}.arrow"
            read = QueryBuilder().register("t", DeltaTable(table, version=version)).execute("SELECT * FROM t")
            result = pa.table(read.read_all())
            with pa.ipc.new_file(file, result.schema) as out:
                out.write_table(result)
            made.append({"table": str(table), "version": version, "rows": str(file)})
    (folder / "made.json").write_text(json.dumps(made))


main()
