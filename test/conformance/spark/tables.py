# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The tables that Spark writes for test_spark.py; runs in Spark's own environment.

tables.py JAR WAREHOUSE OUT creates them in one Spark session and pickles their expected content: for each table its
folder, columns and rows. Rows are as Spark reads them, unless a table specifies its own, since Spark's results are not
always right. WAREHOUSE/flink has the plan of upserts.py.
"""

# ruff: noqa: E501
# Statements and conditions are read best in one line.
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownParameterType=false, reportUnknownArgumentType=false

from __future__ import annotations

import json
import os
import pickle
import sys
import time
from collections.abc import Callable, Iterable
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from commits import commit
from pyspark.sql import DataFrame, Row, SparkSession

Rows = list[tuple[Any, ...]]


class Maker:
    """A Spark session and the tables created with it."""

    def __init__(self, jar: Path, warehouse: Path) -> None:
        os.environ["TZ"] = "UTC"
        time.tzset()
        self.warehouse = warehouse
        settings = {
            "spark.jars": str(jar),
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "1g",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": "1",
            "spark.sql.adaptive.enabled": "false",
            # fast start, as the JVM runs for only a minute
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.sql.ansi.enabled": "true",
            "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
            "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.lake.type": "hadoop",
            "spark.sql.catalog.lake.warehouse": str(warehouse / "lake"),
            "spark.sql.catalog.lake.cache-enabled": "false",
            "spark.sql.warehouse.dir": str(warehouse / "hive"),
            "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
            "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
            "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
            "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
        }
        builder = SparkSession.builder.master("local[2]")
        for key, value in settings.items():
            builder = builder.config(key, value)
        self.spark = builder.getOrCreate()
        self.spark.sparkContext.setLogLevel("ERROR")
        self.made: dict[str, dict[str, Any]] = {}

    def sql(self, text: str) -> DataFrame:
        """Runs a statement."""
        return self.spark.sql(text)

    def create(
        self, name: str, columns: str, *, by: str = "", version: int = 2, properties: dict[str, str] | None = None
    ) -> str:
        """Creates an empty table; returns its SQL name."""
        table = f"lake.db.{name}"
        values = {"format-version": str(version), **(properties or {})}
        listed = ", ".join(f"'{k}'='{v}'" for k, v in values.items())
        self.sql(f"CREATE TABLE {table} ({columns}) USING iceberg {by} TBLPROPERTIES ({listed})")
        return table

    def keep(self, name: str, rows: Rows | None = None, columns: Iterable[str] = (), select: str = "*") -> None:
        """Registers a finished table. rows and columns: its expected content, if Spark must not be asked."""
        if rows is None:
            read = self.sql(f"SELECT {select} FROM lake.db.{name}")
            columns, rows = read.columns, [tuple(plain(v) for v in r) for r in read.collect()]
        self.made[name] = {"folder": str(self.warehouse / "lake/db" / name), "columns": list(columns), "rows": rows}

    def java(self, name: str) -> Any:
        """The table object of Iceberg's Java API."""
        jvm = self.spark._jvm
        return jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(self.spark._jsparkSession, f"lake.db.{name}")

    def hive(self, name: str, rows: DataFrame, *by: str) -> str:
        """Writes Parquet files in Hive's layout, without the partition columns."""
        folder = self.warehouse / "hive" / name
        rows.write.partitionBy(*by).parquet(str(folder))
        return f"`parquet`.`{folder}`"

    def add_files(self, name: str, source: str) -> None:
        """Adds such files to a table with add_files."""
        self.sql(f"CALL lake.system.add_files(table => 'db.{name}', source_table => '{source}')")


def plain(value: Any) -> Any:
    """Converts a value from Spark's classes to Python's."""
    match value:
        case Row():
            return {k: plain(v) for k, v in value.asDict().items()}
        case list():
            return [plain(v) for v in value]
        case dict():
            return sorted((plain(k), plain(v)) for k, v in value.items())
        case bytearray():
            return bytes(value)
    return value


TABLES: list[Callable[[Maker], None]] = []


def table(build: Callable[[Maker], None]) -> Callable[[Maker], None]:
    """Decorator that registers a function that creates tables."""
    TABLES.append(build)
    return build


_COLUMNS = "id bigint, small int, price double, ratio float, name string, day date, seen timestamp, wall timestamp_ntz, flag boolean, raw binary, cost decimal(12,3)"
_ROWS = """SELECT id, IF(id % 7 = 0, NULL, CAST(id % 100 AS int)) small, id / 8D price, CAST(id / 4 AS float) ratio,
    CONCAT('name ', id % 5) name, DATE_ADD(DATE '1999-12-30', CAST(id % 9 AS int)) day,
    TIMESTAMP_MICROS(id * 300000001 - 100000000000) seen, CAST(TIMESTAMP_MICROS(id * 3600000007) AS timestamp_ntz) wall, id % 3 = 0 flag,
    CAST(CONCAT('raw', id) AS binary) raw, CAST(id * 1.001BD AS decimal(12,3)) cost FROM RANGE({first}, {last})"""


def _changes(m: Maker, name: str) -> None:
    m.sql(f"INSERT INTO {name} {_ROWS.format(first=0, last=1000)}")
    m.sql(f"INSERT INTO {name} {_ROWS.format(first=1000, last=1500)}")
    m.sql(f"DELETE FROM {name} WHERE id % 10 = 3 OR id BETWEEN 200 AND 260")
    m.sql(f"UPDATE {name} SET price = -price, name = 'updated' WHERE id % 11 = 5")
    m.sql(
        f"MERGE INTO {name} t USING (SELECT id, id + 0.5D price FROM RANGE(900, 1100)) s ON t.id = s.id "
        "WHEN MATCHED AND t.id % 2 = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET t.price = s.price "
        "WHEN NOT MATCHED THEN INSERT (id, price) VALUES (s.id, s.price)"
    )


@table
def changed(m: Maker) -> None:
    """Deleted, updated and merged rows: rewritten files, delete files and deletion vectors; with and without
    partitions."""
    for name, version, mode, by in [
        ("v1_copy", 1, "copy-on-write", ""),
        ("v2_copy", 2, "copy-on-write", "PARTITIONED BY (days(seen), bucket(3, id))"),
        ("v2_merge", 2, "merge-on-read", "PARTITIONED BY (name)"),
        ("v3_merge", 3, "merge-on-read", "PARTITIONED BY (truncate(3, name))"),
    ]:
        modes = {f"write.{what}.mode": mode for what in ("delete", "update", "merge")}
        changed = m.create(name, _COLUMNS, by=by, version=version, properties=modes)
        _changes(m, changed)
        m.keep(name)


@table
def lineage(m: Maker) -> None:
    """Row ids and sequence numbers after an upgrade from version 2, updates and deletes of both modes, and a rewrite."""
    for name, mode in [("lineage_merge", "merge-on-read"), ("lineage_copy", "copy-on-write")]:
        modes = {f"write.{what}.mode": mode for what in ("delete", "update")}
        made = m.create(name, "id bigint, name string", properties=modes)
        m.sql(f"INSERT INTO {made} SELECT id, 'old' FROM RANGE(5)")
        m.sql(f"ALTER TABLE {made} SET TBLPROPERTIES ('format-version'='3')")
        m.sql(f"INSERT INTO {made} SELECT id, 'new' FROM RANGE(10, 30)")
        m.sql(f"UPDATE {made} SET name = 'changed' WHERE id % 7 = 3")
        m.sql(f"DELETE FROM {made} WHERE id % 5 = 0")
        if mode == "copy-on-write":
            options = "options => map('rewrite-all', 'true')"
            m.sql(f"CALL lake.system.rewrite_data_files(table => 'db.{name}', {options})")
            m.sql(f"INSERT INTO {made} VALUES (30, 'last')")
        m.keep(name, select="id, name, _row_id, _last_updated_sequence_number")


@table
def maintained(m: Maker) -> None:
    """Files and manifests rewritten after deletes; a partition spec changed between appends; lz4."""
    properties = {"write.delete.mode": "merge-on-read", "write.parquet.compression-codec": "lz4"}
    name = m.create("maintained", _COLUMNS, properties=properties)
    m.sql(f"INSERT INTO {name} {_ROWS.format(first=0, last=300)}")
    m.sql(f"DELETE FROM {name} WHERE id % 3 = 1")
    m.sql(f"ALTER TABLE {name} ADD PARTITION FIELD days(seen)")
    m.sql("CALL lake.system.rewrite_data_files(table => 'db.maintained', options => map('rewrite-all', 'true'))")
    m.sql(f"ALTER TABLE {name} DROP PARTITION FIELD days(seen)")
    m.sql(f"ALTER TABLE {name} ADD PARTITION FIELD name")
    m.sql(f"INSERT INTO {name} {_ROWS.format(first=300, last=340)}")
    m.sql(f"DELETE FROM {name} WHERE id IN (5, 6, 310, 339)")
    m.sql("CALL lake.system.rewrite_manifests('db.maintained')")
    m.keep("maintained")


@table
def audited(m: Maker) -> None:
    """A branch that its first commit makes: Java begins to count the summary's totals at 0. Then main becomes the branch."""
    for name in "audited", "audited_expired":
        _audit(m, name)
    m.sql(
        "CALL lake.system.expire_snapshots(table => 'db.audited_expired', retain_last => 1, older_than => TIMESTAMP '2100-01-01 00:00:00')"
    )
    m.keep("audited")
    m.keep("audited_expired")


def _audit(m: Maker, short: str) -> None:
    properties = {"write.wap.enabled": "true", "write.delete.mode": "merge-on-read"}
    name = m.create(short, _COLUMNS, properties=properties)
    m.sql(f"INSERT INTO {name} {_ROWS.format(first=0, last=100)}")
    m.sql(f"DELETE FROM {name} WHERE id = 3")
    m.spark.conf.set("spark.wap.branch", "audit")
    m.sql(f"INSERT INTO {name} {_ROWS.format(first=100, last=150)}")
    m.sql(f"DELETE FROM {name} WHERE id IN (4, 120)")
    m.spark.conf.unset("spark.wap.branch")
    m.sql(f"CALL lake.system.fast_forward('db.{short}', 'main', 'audit')")
    m.sql(f"ALTER TABLE {name} DROP BRANCH audit")
    if short == "audited":
        m.sql(f"INSERT INTO {name} {_ROWS.format(first=150, last=160)}")


@table
def evolved(m: Maker) -> None:
    """Columns added, dropped, renamed, widened and moved, also in structs; lists and maps."""
    name = m.create(
        "evolved",
        "id int, a float, d decimal(9,2), s struct<x:int,y:string>, l array<int>, m map<string,int>, gone string",
    )
    m.sql(
        f"INSERT INTO {name} SELECT CAST(id AS int), CAST(id / 2 AS float), CAST(id / 4 AS decimal(9,2)), IF(id % 4 = 0, NULL, NAMED_STRUCT('x', CAST(id AS int), 'y', 'why')), IF(id % 3 = 0, NULL, SEQUENCE(0, CAST(id % 5 AS int))), MAP('k', CAST(id AS int)), 'gone' FROM RANGE(50)"
    )
    for change in [
        "ALTER COLUMN id TYPE bigint", "ALTER COLUMN a TYPE double", "ALTER COLUMN d TYPE decimal(20,2)", "DROP COLUMN gone",
        "ALTER COLUMN s.x TYPE bigint", "ADD COLUMN s.z double", "RENAME COLUMN s.y TO why", "ADD COLUMN new string FIRST",
        "ADD COLUMN gone bigint", "ALTER COLUMN l.element TYPE bigint", "ALTER COLUMN m.value TYPE bigint",
    ]:  # fmt: skip
        m.sql(f"ALTER TABLE {name} {change}")
    m.sql(
        f"INSERT INTO {name} SELECT 'n', id + 5000000000, 1e300D, 123456789012345678.25BD, NAMED_STRUCT('x', id + 5000000000, 'why', NULL, 'z', 0.5D), ARRAY(id + 5000000000, NULL), MAP('k', id + 5000000000, 'n', NULL), id FROM RANGE(5)"
    )
    m.keep("evolved")


@table
def migrated(m: Maker) -> None:
    """Hive tables imported by add_files: their partition columns are not in the files, and were widened later."""
    ids = m.sql("SELECT id FROM RANGE(6)")
    for name, old, new, expression in [
        ("hive_float", "float", "double", "IF(id < 3, 0.5F, 1.25F)"),
        ("hive_int", "int", "bigint", "CAST(id % 2 AS int)"),
        ("hive_decimal", "decimal(9,2)", "decimal(20,2)", "IF(id < 3, 0.50BD, -1.25BD)"),
        ("hive_date", "date", "", "DATE_ADD(DATE '2024-02-28', CAST(id % 3 AS int))"),
        ("hive_string", "string", "", "CONCAT('a/b ', id % 2)"),
    ]:
        source = m.hive(name, ids.selectExpr("id", f"CAST({expression} AS {old}) c"), "c")
        made = m.create(name, f"id bigint, c {old}", by="PARTITIONED BY (c)")
        m.add_files(name, source)
        if new:
            m.sql(f"ALTER TABLE {made} ALTER COLUMN c TYPE {new}")
        wide = ids.selectExpr("id", f"CAST(CAST({expression} AS {old}) AS {new or old}) c")
        m.keep(name, [tuple(r) for r in wide.collect()], ["id", "c"])


@table
def twins(m: Maker) -> None:
    """Two partition fields with the same Avro type: decimals of equal precision, UUIDs; present in files and absent;
    ""."""
    name = m.create("decimal_twins", "id bigint, a decimal(9,2), b decimal(9,2)", by="PARTITIONED BY (a, b)")
    m.sql(
        f"INSERT INTO {name} SELECT id, CAST(id % 3 AS decimal(9,2)), IF(id % 4 = 0, NULL, CAST(-(id % 2) / 4 AS decimal(9,2))) FROM RANGE(40)"
    )
    m.keep("decimal_twins")

    source = m.hive("hive_twins", m.sql("SELECT id, 0.25BD * (id % 2) a, -1.50BD b FROM RANGE(6)"), "a", "b")
    m.create("hive_twins", "id bigint, a decimal(9,2), b decimal(9,2)", by="PARTITIONED BY (a, b)")
    m.add_files("hive_twins", source)
    m.keep("hive_twins", [(i, Decimal("0.25") * (i % 2), Decimal("-1.50")) for i in range(6)], ["id", "a", "b"])

    name = m.create("empty_string", "id bigint, c string", by="PARTITIONED BY (c)")
    m.sql(f"INSERT INTO {name} VALUES (1, ''), (2, NULL), (3, 'x'), (4, '')")
    m.keep("empty_string")

    name = m.create("uuid_twins", "id bigint")
    java, types = m.java("uuid_twins"), m.spark._jvm.org.apache.iceberg.types.Types
    java.updateSchema().addColumn("u", types.UUIDType.get()).addColumn("w", types.UUIDType.get()).commit()
    java.updateSpec().addField("u").addField("w").commit()
    m.sql(
        f"INSERT INTO {name} SELECT id, IF(id % 2 = 0, 'f79c3e09-677c-4bbd-a479-3f349cb785e7', '00000000-0000-0000-0000-0000000000ff'), 'ffffffff-ffff-ffff-ffff-ffffffffffff' FROM RANGE(6)"
    )
    m.keep("uuid_twins")


@table
def floats(m: Maker) -> None:
    """NaN, infinities, zeros of both signs and the smallest numbers, in one file and in separate files."""
    values = [
        "'NaN'",
        "NULL",
        "'Infinity'",
        "'-Infinity'",
        "0.0",
        "-0.0",
        "1e-45",
        "1.4e-45",
        "3.4028235e38",
        "0.1",
        "16777217",
        "-2.5",
    ]
    for name, by in [("floats", ""), ("float_files", "PARTITIONED BY (id)")]:
        made = m.create(name, "id int, f float, d double", by=by)
        rows = ", ".join(f"({i}, CAST({v} AS float), CAST({v} AS double))" for i, v in enumerate(values))
        m.sql(f"INSERT INTO {made} VALUES {rows}")
        m.keep(name)
    made = m.create("float_widened", "id int, f float", by="PARTITIONED BY (f)")
    m.sql(f"INSERT INTO {made} SELECT id, f FROM lake.db.floats")
    m.sql(f"ALTER TABLE {made} ALTER COLUMN f TYPE double")
    m.keep("float_widened")


@table
def old_timestamps(m: Maker) -> None:
    """INT96, the timestamp type of Spark's own tables, from before 1677 and after 2262."""
    times = [
        "1600-01-01 00:00:00.000001",
        "1677-09-21 00:12:43",
        "1969-12-31 23:59:59.999999",
        "2024-02-29 12:34:56.123456",
        "3000-12-31 23:59:59",
    ]
    rows = m.sql(
        "SELECT * FROM VALUES "
        + ", ".join(f"({i}, TIMESTAMP '{t}')" for i, t in enumerate([*times, "2000-01-01"]))
        + " AS t(id, ts)"
    )
    m.spark.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    folder = m.warehouse / "hive/int96"
    rows.write.parquet(str(folder))
    m.create("int96", "id int, ts timestamp")
    m.add_files("int96", f"`parquet`.`{folder}`")
    m.keep("int96", [(i, datetime.fromisoformat(t)) for i, t in enumerate([*times, "2000-01-01"])], ["id", "ts"])


#: Parquet's codecs as Iceberg and Spark name them. Brotli's jar is in no distribution of theirs; LZO is not free.
CODECS = ["uncompressed", "snappy", "gzip", "zstd", "lz4", "lz4_raw"]


@table
def codecs(m: Maker) -> None:
    """Every codec, by Iceberg's writer and by Spark's own, which also writes data pages of version 2."""
    rows = _ROWS.replace(" seen,", " seen, SEQUENCE(0, CAST(id % 5 AS int)) numbers,")
    columns = _COLUMNS.replace("wall timestamp_ntz", "numbers array<int>, wall timestamp_ntz")
    pages = {"write.parquet.page-size-bytes": "2000", "write.parquet.row-group-size-bytes": "40000"}
    by_iceberg = m.create("codecs_iceberg", columns, properties=pages)
    for i, codec in enumerate(CODECS):
        m.sql(f"ALTER TABLE {by_iceberg} SET TBLPROPERTIES ('write.parquet.compression-codec'='{codec}')")
        m.sql(f"INSERT INTO {by_iceberg} {rows.format(first=1000 * i, last=1000 * i + 900)}")
    m.keep("codecs_iceberg")

    m.create("codecs_spark", columns)
    folder = m.warehouse / "hive" / "codecs"
    for i, (codec, version) in enumerate((c, v) for c in CODECS for v in ("v1", "v2")):
        written = m.sql(rows.format(first=1000 * i, last=1000 * i + 500)).coalesce(1).write.mode("append")
        own = {"compression": codec, "parquet.writer.version": version, "parquet.page.size": "2000"}
        written.options(**own).parquet(str(folder))
    m.add_files("codecs_spark", f"`parquet`.`{folder}`")
    m.keep("codecs_spark")


@table
def defaults(m: Maker) -> None:
    """Columns of every type added with an initial default to files that lack them."""
    name = m.create("defaults", "id bigint", version=3)
    m.sql(f"INSERT INTO {name} VALUES (1), (2)")
    jvm = m.spark._jvm
    types, literal = jvm.org.apache.iceberg.types.Types, jvm.org.apache.iceberg.expressions.Expressions.lit
    text = [
        ("date", types.DateType.get(), "2024-02-29", date(2024, 2, 29)),
        (
            "wall",
            types.TimestampType.withoutZone(),
            "2024-02-29T12:34:56.123456",
            datetime(2024, 2, 29, 12, 34, 56, 123456),
        ),
        (
            "seen",
            types.TimestampType.withZone(),
            "2024-02-29T12:34:56.123456+00:00",
            datetime(2024, 2, 29, 12, 34, 56, 123456),
        ),
        ("uuid", types.UUIDType.get(), "f79c3e09-677c-4bbd-a479-3f349cb785e7", "f79c3e09-677c-4bbd-a479-3f349cb785e7"),
        ("text", types.StringType.get(), "it's", "it's"),
    ]
    update = m.java("defaults").updateSchema()
    for column, typ, value, _ in text:
        update = update.addColumn(column, typ, "", literal(value).to(typ))
    numbers = [
        ("long", types.LongType.get(), literal(jvm.Long.valueOf(9007199254740993)), 9007199254740993),
        ("most", types.LongType.get(), literal(jvm.Long.valueOf(2**63 - 1)), 2**63 - 1),
        ("int", types.IntegerType.get(), literal(-7), -7),
        ("double", types.DoubleType.get(), literal(0.1), 0.1),
        ("flag", types.BooleanType.get(), literal(True), True),
        (
            "cost",
            types.DecimalType.of(20, 2),
            literal(jvm.java.math.BigDecimal("123456789012345678.25")),
            Decimal("123456789012345678.25"),
        ),
        ("raw", types.BinaryType.get(), literal(jvm.java.nio.ByteBuffer.wrap(bytes([0, 1, 255]))), b"\0\1\xff"),
    ]
    for column, typ, value, _ in numbers:
        update = update.addColumn(column, typ, "", value)
    update.commit()
    values = [v for *_, v in text] + [v for *_, v in numbers]
    columns = ["id", *[c for c, *_ in text], *[c for c, *_ in numbers]]
    m.keep("defaults", [(i, *values) for i in (1, 2)], columns)


@table
def folder(m: Maker) -> None:
    """Plain files of no table, as a Spark job leaves them."""
    rows = m.sql(
        "SELECT id, CAST(id % 256 AS TINYINT) AS small, 'v' || id AS text, TIMESTAMP '2026-01-01 12:00:00.5' AS at, array(id, NULL) AS pair,"
        " CAST(id AS DECIMAL(12, 3)) AS price, map('k', id) AS tags, named_struct('a', id, 'b', 'b') AS s,"
        " DATE '2026-01-01' + CAST(id % 3 AS INT) AS day, IF(id % 4 = 0, NULL, 'x/' || id % 4) AS word FROM range(40)"
    )
    m.hive("folder", rows.repartition(2), "day", "word")
    read = m.spark.read.parquet(str(m.warehouse / "hive/folder"))
    m.made["folder"] = {
        "folder": str(m.warehouse / "hive/folder"),
        "columns": read.columns,
        "rows": [tuple(plain(v) for v in r) for r in read.collect()],
    }


@table
def upserted(m: Maker) -> None:
    """The files that upserts.py wrote as Flink's sink does, by its plan."""
    for name, plan in json.loads((m.warehouse / "flink/plan.json").read_text()).items():
        for checkpoint, step in enumerate(plan["steps"]):
            if "sql" in step:
                m.sql(step["sql"].format(f"lake.db.{name}"))
            else:
                commit(m.spark._jvm, m.spark.sparkContext._gateway, m.java(name), step["files"], checkpoint)
        # Iceberg's Java library fails on equality deletes of a column that was dropped.
        m.keep(name, [tuple(row) for row in plan["rows"]] if "rows" in plan else None, plan.get("columns", ()))


def main() -> None:
    """Creates the named tables, or all."""
    jar, warehouse, out, *only = sys.argv[1:]
    maker = Maker(next(Path(jar).glob("*.jar")), Path(warehouse))
    for build in TABLES:
        if only and build.__name__ not in only:
            continue
        start = time.monotonic()
        build(maker)
        print(f"{build.__name__}: {time.monotonic() - start:.1f} s", flush=True)
    Path(out).write_bytes(pickle.dumps(maker.made))
    maker.spark.stop()


if __name__ == "__main__":
    main()
