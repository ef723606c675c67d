# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Caches of Delta tables that are written by the protocol, through the binary.

delta/check_rows.py compares tables of delta-rs and Spark with delta-rs' own reader (make test-delta).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from client import Client, metadata
from server import Cache, Caches, Mode

Connect = Callable[[Cache], Client]
Private = Callable[..., Cache]


class Table:
    """A table of the column id, partitioned by the column day."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.version = folder, -1
        (folder / "_delta_log").mkdir(parents=True)
        fields = [
            {"name": name, "type": kind, "nullable": True, "metadata": {}}
            for name, kind in [("id", "long"), ("day", "date")]
        ]
        schema = json.dumps({"type": "struct", "fields": fields})
        self.commit(
            {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["deletionVectors"]}},
            {"metaData": {"id": "t", "schemaString": schema, "partitionColumns": ["day"], "configuration": {}}},
            self.add("day=2026-01-02/b.parquet", range(20), at=1),
            self.add("day=2026-01-01/a.parquet", range(20, 30), at=2),
        )

    def commit(self, *actions: dict[str, Any]) -> None:
        """Commits the next version."""
        self.version += 1
        text = "".join(json.dumps(action) + "\n" for action in actions)
        (self.folder / "_delta_log" / f"{self.version:020}.json").write_text(text)

    def add(self, name: str, ids: range, at: int, **more: Any) -> dict[str, Any]:
        """Writes a file, and returns the action that adds it."""
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        pq.write_table(pa.table({"id": pa.array(ids, pa.int64())}), path, row_group_size=8)
        day = path.parent.name.removeprefix("day=")
        own = {"path": name, "size": path.stat().st_size, "modificationTime": at, "partitionValues": {"day": day}}
        return {"add": {**own, "stats": json.dumps({"numRecords": len(ids)}), **more}}


DELETED = [3, 4, 7, 11, 18, 29]
DAYS = {**dict.fromkeys(range(20), "2026-01-02"), **dict.fromkeys(range(20, 30), "2026-01-01")}


@pytest.fixture
def made(tmp_path: Path) -> Table:
    """A table whose version 1 adds ten rows to the first file and deletes DELETED of it."""
    table = Table(tmp_path / "a table")
    vector = {
        "storageType": "i",
        "pathOrInlineDv": "^Bg9^0rr910000000000iXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L",
        "sizeInBytes": 44,
        "cardinality": len(DELETED),
    }
    first = "day=2026-01-02/b.parquet"
    table.commit(
        {"remove": {"path": first}}, table.add("day=2026-01-02/c.parquet", range(30), at=1, deletionVector=vector)
    )
    return table


def rows(cache: Cache, connect: Connect) -> list[tuple[int, str]]:
    """The rows of a cache in order."""
    cache.wait("Ready")
    read = connect(cache).table()
    assert read.schema == pa.schema([("id", pa.int64()), ("day", pa.date32())])
    return [(row["id"], str(row["day"])) for row in read.to_pylist()]


FIRST = [(i, DAYS[i]) for i in range(30)]  # the rows of version 0
SECOND = [(i, "2026-01-02") for i in range(30) if i not in DELETED] + FIRST[20:]  # and of version 1


def test_rows_and_their_order(mode: Mode, made: Table, private: Private, connect: Connect) -> None:
    cache = private(["--delta", str(made.folder)], mode=mode, nodes=2)
    assert rows(cache, connect) == SECOND
    assert metadata(connect(cache).command(kind="shard", index=0, total=1))["dataset"]["snapshot"] == 1
    assert cache.status()["snapshot"] == 1


@pytest.mark.parametrize(("day", "want"), [("2026-01-02", SECOND[7:24]), ("2026-01-01", [])])
def test_a_filter_on_a_partition(day: str, want: list[Any], made: Table, private: Private, connect: Connect) -> None:
    cache = private(
        ["--delta", str(made.folder), "--filter", f"day = DATE '{day}' AND id BETWEEN 10 AND 19 OR id = -1"]
    )
    assert rows(cache, connect) == [row for row in SECOND if row[1] == day and 10 <= row[0] < 20]


def test_versions_by_number_and_time(made: Table, private: Private, connect: Connect) -> None:
    for version, seconds in enumerate([1_000_000_000, 1_100_000_000]):
        os.utime(made.folder / "_delta_log" / f"{version:020}.json", (seconds, seconds))
    for flags, want in [
        (["--snapshot-id", "0"], FIRST),
        (["--snapshot-id", "1"], SECOND),
        (["--as-of", "2004-01-01T00:00:00Z"], FIRST),
        (["--as-of", "2005-01-01T00:00:00Z"], SECOND),
    ]:
        assert rows(private(["--delta", str(made.folder), *flags]), connect) == want


def test_a_head_that_lost_its_plan_serves_the_same_version(made: Table, private: Private, connect: Connect) -> None:
    cache = private(["--delta", str(made.folder)], mode="cluster", nodes=2)
    assert rows(cache, connect) == SECOND
    made.commit({"remove": {"path": "day=2026-01-01/a.parquet"}})
    cache.restart("head")
    assert rows(cache, connect) == SECOND
    cache.restart("node-0")
    cache.wait("Degraded", "Ready")
    assert rows(cache, connect) == SECOND


def test_inspect_names_table_and_version(made: Table, caches: Caches) -> None:
    done = caches.run("inspect", "--delta", str(made.folder), "--snapshot-id", "0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"table     {made.folder}\nuuid      t\nversion   0\n")
    assert done.stdout.count("b.parquet") == 3, "row groups of 8 rows"
    pruned = caches.run("inspect", "--delta", str(made.folder), "--filter", "day = DATE '2026-01-01' AND id > 27")
    assert pruned.stdout.count(".parquet") == 1


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--files", "x"], "--files"),
        (["--metadata", "x"], "--delta"),
        (["--ref", "main"], "Delta tables have no branches"),
        (["--snapshot-id", "7"], "the latest one is 1"),
        (["--as-of", "1999-01-01T00:00:00Z"], "name a later time"),
        (["--columns", "no"], "no such top-level column"),
    ],
    ids=lambda flags: flags[0] if isinstance(flags, list) else "",
)
def test_what_contradicts_is_refused(flags: list[str], says: str, made: Table, caches: Caches) -> None:
    done = caches.run("inspect", "--delta", str(made.folder), *flags)
    assert done.returncode not in (0, 2)
    assert says in done.stderr


def test_features_are_refused_by_name(made: Table, caches: Caches) -> None:
    made.commit({"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["typeWidening"]}})
    done = caches.run("local", "--delta", str(made.folder), "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0")
    assert done.returncode == 3
    assert "typeWidening" in done.stderr
    assert "DROP FEATURE" in done.stderr


@pytest.mark.parametrize("at", ["", "day=2026-01-01"])
def test_files_of_a_table_name_the_right_source(at: str, made: Table, caches: Caches) -> None:
    done = caches.run("inspect", "--files", str(made.folder / at))
    assert done.returncode not in (0, 2)
    assert "name its folder as a Delta table: by --delta" in done.stderr
