# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tables of upserts, with the files that Apache Flink's sink writes, and a model of their content.

The Parquet files are written here, by pyarrow; spark/commits.py commits them with Iceberg's Java API. Each checkpoint
is one commit of data files, equality deletes of rows of earlier checkpoints, and position deletes of rows of its own.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import LongType

#: A row: its values by field id.
Row = dict[int, Any]
Column = tuple[int, str, pa.DataType]
#: A partition: the id of its spec, and its path.
Partition = tuple[int, str]
Key = tuple[Any, ...]

POSITIONS: list[Column] = [(2147483546, "file_path", pa.string()), (2147483545, "pos", pa.int64())]


def values(row: Row, ids: Iterable[int]) -> Key:
    """The values of some fields of a row."""
    return tuple(row.get(i) for i in ids)


@dataclass
class File:
    """A written file: its rows, and what its commit says of it."""

    content: str
    path: str
    partition: Partition
    rows: list[Row]
    equal: list[int]
    sequence: int

    def plan(self) -> dict[str, Any]:
        """What spark/commits.py needs of it."""
        spec, partition = self.partition
        size = Path(self.path).stat().st_size
        same = {row[POSITIONS[0][0]] for row in self.rows} if self.content == "position" else ()
        return {
            "content": self.content, "path": self.path, "size": size, "spec": spec, "partition": partition,
            "equal": self.equal, "data": next(iter(same)) if len(same) == 1 else "",
        }  # fmt: skip


@dataclass
class Writer:
    """What one of Flink's tasks writes for a partition between two checkpoints."""

    data: list[Row] = field(default_factory=list)
    equality: list[Row] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    own: dict[Key, int] = field(default_factory=dict)

    def delete(self, key: Key, row: Row) -> None:
        """Deletes by position a row that it has itself written, others by their key."""
        if key in self.own:
            self.positions.append(self.own.pop(key))
        else:
            self.equality.append(row)

    def write(self, key: Key, row: Row) -> None:
        """Appends a row."""
        self.own[key] = len(self.data)
        self.data.append(row)


@dataclass
class Upserts:
    """A table that is being written: the model of its rows, and the steps that write it."""

    name: str
    folder: Path
    columns: list[Column]
    by: Callable[[Row], Partition] = lambda _: (0, "")
    rows: list[tuple[Partition, Row]] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)
    files: list[File] = field(default_factory=list)
    sequence: int = 0
    unread: bool = False  # whether Iceberg's Java library can't read the table

    def sql(self, text: str, columns: list[Column] | None = None) -> None:
        """A statement that changes the table, and the columns that it has afterwards."""
        self.steps.append({"sql": text})
        self.columns = columns or self.columns

    def checkpoint(
        self, key: list[int], changes: list[tuple[str, Row]], *, whole: bool = False, everywhere: Iterable[Key] = ()
    ) -> None:
        """Commits upserts ("+") and deletes ("-") of rows by key, in order, each within its partition.

        whole: the equality deletes contain whole rows. everywhere: keys whose older rows in all partitions are deleted.
        """
        self.sequence += 1
        first = len(self.files)
        if everywhere := list(everywhere):
            self._write("equality", (0, ""), [dict(zip(key, k, strict=True)) for k in everywhere], key)
            self.rows = [(p, r) for p, r in self.rows if values(r, key) not in everywhere]
        writers: dict[tuple[int, Partition], Writer] = {}
        for change, row in changes:
            k, partition = values(row, key), self.by(row)
            self.rows = [(p, r) for p, r in self.rows if (p, values(r, key)) != (partition, k)]
            writer = writers.setdefault((sum(map(ord, str(k))) % 2, partition), Writer())
            writer.delete(k, row)
            if change == "+":
                self.rows.append((partition, row))
                writer.write(k, row)
        for (_, partition), writer in writers.items():
            path = self._write("data", partition, writer.data)
            self._write("equality", partition, writer.equality, key, whole=whole)
            at = [{POSITIONS[0][0]: path, POSITIONS[1][0]: p} for p in sorted(writer.positions)]
            self._write("position", partition, at)
        self.steps.append({"files": [file.plan() for file in self.files[first:]]})

    def _write(
        self, content: str, partition: Partition, rows: list[Row], equal: Iterable[int] = (), *, whole: bool = True
    ) -> str:
        if not rows:
            return ""
        columns = POSITIONS if content == "position" else self.columns
        if content == "equality" and not whole:
            columns = [column for column in columns if column[0] in equal]
        fields = [pa.field(name, t, metadata={"PARQUET:field_id": str(i)}) for i, name, t in columns]
        path = self.folder / self.name / f"{len(self.files):05}-{content}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        arrays = [pa.array([row.get(i) for row in rows], t) for i, _, t in columns]
        pq.write_table(pa.table(arrays, schema=pa.schema(fields)), path, store_schema=False)
        self.files.append(File(content, str(path), partition, rows, list(equal), self.sequence))
        return str(path)

    def plan(self) -> dict[str, Any]:
        """The steps, and the content of a table that Spark can't read."""
        unread = {"rows": self.model(), "columns": [name for _, name, _ in self.columns]} if self.unread else {}
        return {"steps": self.steps, **unread}

    def model(self) -> list[Key]:
        """The rows of the table."""
        return [values(row, [i for i, _, _ in self.columns]) for _, row in self.rows]

    def read(self, mistake: str = "") -> list[Key]:
        """The rows that a reader of the files returns, one that makes a mistake if named."""
        deletes = [file for file in self.files if file.content != "data"]
        out: list[Key] = []
        for data in self.files:
            if data.content != "data":
                continue
            at = {
                row[POSITIONS[1][0]] for d in deletes if d.content == "position" for row in d.rows
                if row[POSITIONS[0][0]] == data.path and mistake != "no position deletes"
            }  # fmt: skip
            sets = [
                (d.equal, {values(row, d.equal) for row in d.rows})
                for d in deletes
                if _applies(d, data, mistake) and (mistake != DROPPED or {*d.equal} <= {i for i, _, _ in self.columns})
            ]
            for position, row in enumerate(data.rows):
                equal = any(
                    values(row, ids) in keys and not (mistake == "null differs from null" and None in values(row, ids))
                    for ids, keys in sets
                )
                if position not in at and not equal:
                    out.append(values(row, [i for i, _, _ in self.columns]))
        return out


#: What a reader can do wrong.
PARTITIONS = ["deletes in other partitions", "deletes only in its partition"]
DROPPED = "no deletes by dropped columns"
MISTAKES = [
    "no position deletes", "no equality deletes", "deletes rows of the same commit", "null differs from null",
    *PARTITIONS, DROPPED,
]  # fmt: skip


def _applies(delete: File, data: File, mistake: str) -> bool:
    """Whether a reader applies an equality delete file to a data file."""
    if delete.content != "equality" or mistake == "no equality deletes":
        return False
    if delete.sequence < data.sequence or (
        delete.sequence == data.sequence and mistake != "deletes rows of the same commit"
    ):
        return False
    if delete.partition == data.partition or mistake == "deletes in other partitions":
        return True
    return delete.partition[1] == "" and mistake != "deletes only in its partition"


NUMBERS = range(1 << 31)  # so many that every row has another


def changes(rng: random.Random, count: int, columns: dict[int, Sequence[Any]]) -> list[tuple[str, Row]]:
    """Random changes, of which a quarter are deletes; columns: the values of each field."""
    return [(rng.choice("+++-"), {i: rng.choice(some) for i, some in columns.items()}) for _ in range(count)]


def one_key(folder: Path, rng: random.Random) -> Upserts:
    """Key of one column, some null; no partitions."""
    t = Upserts("flink_one_key", folder, [(1, "id", pa.int64()), (2, "name", pa.string()), (3, "n", pa.int32())])
    t.sql("CREATE TABLE {} (id bigint, name string, n int) USING iceberg TBLPROPERTIES ('format-version'='2')")
    for _ in range(4):
        t.checkpoint([1], changes(rng, 60, {1: [None, *range(30)], 2: [None, "", "a"], 3: NUMBERS}))
    return t


def two_keys(folder: Path, rng: random.Random) -> Upserts:
    """Key of two columns, some null; equality deletes of the key and of whole rows; no partitions."""
    t = Upserts("flink_two_keys", folder, [(1, "day", pa.date32()), (2, "n", pa.int32()), (3, "shop", pa.string())])
    t.sql("CREATE TABLE {} (day date, n int, shop string) USING iceberg TBLPROPERTIES ('format-version'='2')")
    days = [None, *(date(1969, 12, 30 + i) for i in range(2)), *(date(2026, 2, 1 + i) for i in range(4))]
    for whole in False, True, False, True:
        t.checkpoint([1, 3], changes(rng, 50, {1: days, 2: NUMBERS, 3: [None, "", "a", "é"]}), whole=whole)
    return t


def partitioned(folder: Path, rng: random.Random) -> Upserts:
    """Partitions, in which the same ids are; equality deletes with and without the partition's column."""
    bucket = BucketTransform(2).transform(LongType())

    def by(row: Row) -> Partition:
        return 0, f"region={row[1] or '__HIVE_DEFAULT_PARTITION__'}/id_bucket={bucket(row[2])}"

    columns = [(1, "region", pa.string()), (2, "id", pa.int64()), (3, "n", pa.int32())]
    t = Upserts("flink_partitioned", folder, columns, by)
    t.sql(
        "CREATE TABLE {} (region string, id bigint, n int) USING iceberg PARTITIONED BY (region, bucket(2, id)) "
        "TBLPROPERTIES ('format-version'='2')"
    )
    for key in [2], [1, 2], [2]:
        t.checkpoint(key, changes(rng, 50, {1: [None, "eu", "us"], 2: range(12), 3: NUMBERS}))
    return t


def everywhere(folder: Path, rng: random.Random) -> Upserts:
    """A table that gets partitions; then equality deletes of the spec without partitions, for all of them."""
    columns = [(1, "region", pa.string()), (2, "id", pa.int64()), (3, "n", pa.int32())]
    t = Upserts("flink_everywhere", folder, columns)
    t.sql("CREATE TABLE {} (region string, id bigint, n int) USING iceberg TBLPROPERTIES ('format-version'='2')")
    choices = {1: ["eu", "us"], 2: range(20), 3: NUMBERS}
    t.checkpoint([2], changes(rng, 30, choices))
    t.sql("ALTER TABLE {} ADD PARTITION FIELD region")
    t.by = lambda row: (1, f"region={row[1]}")
    for _ in range(3):
        t.checkpoint([2], changes(rng, 25, choices), everywhere=[(i,) for i in rng.sample(range(20), 4)])
    return t


def changed(folder: Path, rng: random.Random) -> Upserts:
    """A schema change between checkpoints: columns of the key are widened, renamed and added."""
    kind, n = (2, "kind", pa.string()), (3, "n", pa.int32())
    t = Upserts("flink_changed", folder, [(1, "id", pa.int32()), kind, n])
    t.sql("CREATE TABLE {} (id int, kind string, n int) USING iceberg TBLPROPERTIES ('format-version'='2')")
    choices = {1: [None, -1, *range(12)], 2: [None, "a", "b"], 3: NUMBERS}
    for _ in range(2):
        t.checkpoint([1, 2], changes(rng, 40, choices))
    t.sql("ALTER TABLE {} ALTER COLUMN id TYPE bigint")
    t.sql("ALTER TABLE {} RENAME COLUMN id TO key")
    t.sql("ALTER TABLE {} ADD COLUMN extra string FIRST", [(4, "extra", pa.string()), (1, "key", pa.int64()), kind, n])
    choices |= {1: [*choices[1], 2**40, 2**32 + 3], 4: [None, "x"]}
    t.checkpoint([1, 2], changes(rng, 40, choices))
    t.checkpoint([1, 4], changes(rng, 12, choices))
    return t


def dropped(folder: Path, rng: random.Random) -> Upserts:
    """A column of the key is dropped: the deletes that compare it still apply."""
    ident, kind, n = (1, "id", pa.int64()), (2, "kind", pa.string()), (3, "n", pa.int32())
    t = Upserts("flink_dropped", folder, [ident, kind, n], unread=True)
    t.sql("CREATE TABLE {} (id bigint, kind string, n int) USING iceberg TBLPROPERTIES ('format-version'='2')")
    choices = {1: [None, *range(12)], 2: [None, "a", "b"], 3: NUMBERS}
    for _ in range(2):
        t.checkpoint([1, 2], changes(rng, 40, choices))
    t.sql("ALTER TABLE {} DROP COLUMN kind", [ident, n])
    t.checkpoint([1], changes(rng, 8, {1: choices[1], 3: NUMBERS}))
    return t


#: Each table, and the mistakes that are not seen in its rows.
TABLES: dict[str, tuple[Callable[[Path, random.Random], Upserts], set[str]]] = {
    "flink_one_key": (one_key, {*PARTITIONS, DROPPED}),
    "flink_two_keys": (two_keys, {*PARTITIONS, DROPPED}),
    "flink_partitioned": (partitioned, {"deletes only in its partition", DROPPED}),
    "flink_everywhere": (everywhere, {"null differs from null", DROPPED}),
    "flink_changed": (changed, {*PARTITIONS, DROPPED}),
    "flink_dropped": (dropped, {*PARTITIONS}),
}


def write(folder: Path, seed: int) -> dict[str, Upserts]:
    """Writes the files of all tables, and plan.json, which spark/tables.py follows."""
    folder.mkdir()
    made = {name: build(folder, random.Random(f"{name} {seed}")) for name, (build, _) in TABLES.items()}
    (folder / "plan.json").write_text(json.dumps({name: t.plan() for name, t in made.items()}))
    return made
