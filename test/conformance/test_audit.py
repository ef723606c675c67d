# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""`cacheserver audit`: what metadata states about rows is compared with the rows."""

from __future__ import annotations

import itertools
import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forge
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from lake import Lake, Made
from pyiceberg.manifest import DataFile
from pyiceberg.typedef import Record
from server import Cache, Caches
from tables import evolving_table, random_table

from kit.deadline import limit

Table = Callable[[str], Made]
Private = Callable[..., Cache]

# Positions of fields in pyiceberg's DataFile.
RECORDS, SIZE, VALUES, NULLS, NANS, LOWER, UPPER = 4, 5, 7, 8, 9, 10, 11

SEED = 1001

ID, SCORE, NAME = 1, 2, 3  # field ids of the table below
FIRST, LAST = 0x0123456789, 0x9876543210  # ids of each file


@pytest.fixture
def made(lake: Lake, request: pytest.FixtureRequest) -> Made:
    """A table of this test alone: two files of four rows, with nulls and NaN."""
    schema = pa.schema([("id", pa.int64()), ("score", pa.float64()), ("name", pa.string()), ("region", pa.string())])
    rows = [
        pa.table(
            [[FIRST, FIRST + 1, LAST, None], [0.5, float("nan"), None, -1.5], ["a", "b", None, "d"], [r] * 4],
            schema=schema,
        )
        for r in ("eu", "us")
    ]  # fmt: skip
    name = f"audit_{abs(hash(request.node.nodeid))}"
    table = lake.catalog.create_table(f"lake.{name}", schema=schema, properties={"format-version": "2"})
    with table.update_spec() as update:
        update.add_identity("region")
    for part in rows:
        table.append(part)
    return lake.pin(name, table)


def audit(caches: Caches, made: Made, *flags: str) -> tuple[int, dict[str, Any]]:
    """The exit code of an audit, and its JSON."""
    done = caches.run("audit", made.metadata, "--json", *flags)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.parametrize("name", ["types", "evolved", "deleted", "foreign", "repartitioned", "wide_values"])
def test_nothing_differs_in_tables_of_honest_writers(name: str, table: Table, caches: Caches) -> None:
    code, found = audit(caches, table(name))
    assert found["differences"] == []
    assert code == 0


def test_nothing_differs_in_random_tables(lake: Lake, caches: Caches) -> None:
    for build in random_table(SEED), evolving_table(SEED):
        code, found = audit(caches, lake.table(f"audit_{build.__qualname__}", build))
        assert found["differences"] == []
        assert code == 0


def test_it_counts_what_is_in_each_file(table: Table, caches: Caches) -> None:
    made = table("types")
    _, found = audit(caches, made)
    files = {f["file"]: f for f in found["files"]}
    assert sorted(files) == sorted(set(made.files()))
    for uri, file in files.items():
        rows = pq.read_table(forge.path_of(uri))
        assert file["rows"] == rows.num_rows
        for column in (c for c in file["columns"] if "." not in c["name"]):
            assert column["nulls"] == rows[column["name"]].null_count
        longs = {c["name"]: c for c in file["columns"]}
        for name in (f.name for f in rows.schema if pa.types.is_int64(f.type)):
            extremes = pc.call_function("min_max", [rows[name]]).as_py()
            assert longs[name].get("min") == (None if extremes["min"] is None else str(extremes["min"]))
            assert longs[name].get("max") == (None if extremes["max"] is None else str(extremes["max"]))


def long(n: int) -> bytes:
    return struct.pack("<q", n)


def put(at: int, field: int, value: Any) -> forge.Change:
    """Changes a statistic of a column."""

    def change(file: DataFile) -> None:
        file[at] = {**(file[at] or {}), field: value}

    return change


LIES: dict[str, tuple[forge.Change, set[tuple[str, str, bool]]]] = {
    "lower bound": (put(LOWER, ID, long(FIRST + 1)), {("id", "minimum", True)}),
    "upper bound": (put(UPPER, NAME, b"c"), {("name", "maximum", True)}),
    "wide bounds": (put(LOWER, ID, long(-5)), set()),
    "no nulls": (put(NULLS, ID, 0), {("id", "nulls", True)}),
    "all null": (put(NULLS, NAME, 4), {("name", "nulls", True)}),
    "other nulls": (put(NULLS, NAME, 2), {("name", "nulls", False)}),
    "no NaN": (put(NANS, SCORE, 0), {("score", "NaNs", True)}),
    "values": (put(VALUES, SCORE, 5), {("score", "values", False)}),
    "rows": (lambda f: f.__setitem__(RECORDS, 3), {("", "rows", True), ("", "total-records", True)}),
    "bytes": (lambda f: f.__setitem__(SIZE, 1), {("", "bytes", False)}),
    "partition": (lambda f: f.__setitem__(3, Record("asia")), {("region", "partition value", True)}),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_lies_of_manifests_are_named(lie: str, made: Made, caches: Caches) -> None:
    change, want = LIES[lie]
    forge.set_files(made, change)
    code, found = audit(caches, made)
    assert {(d.get("column", ""), d["what"], d["hides_rows"]) for d in found["differences"]} == want
    assert code == (1 if want else 0)
    files = {d["file"] for d in found["differences"] if d["by"] == "manifest"}
    assert not want or files == set(made.files())
    shown = caches.run("audit", "--metadata", made.metadata)
    assert shown.returncode == code
    for column, what, _ in want:
        assert column in shown.stdout
        assert what in shown.stdout


def test_a_lie_of_a_footer_is_named(made: Made, caches: Caches) -> None:
    liar = made.files()[0]
    forge.set_footer_bytes(liar, long(LAST), long(FIRST + 2))
    code, found = audit(caches, made)
    (difference,) = found["differences"]
    assert code == 1
    assert difference == {
        "file": liar, "by": "row group 0", "column": "id", "what": "maximum",
        "says": str(FIRST + 2), "has": str(LAST), "hides_rows": True,
    }  # fmt: skip


def test_files_that_cannot_be_read_do_not_hide_the_others(made: Made, caches: Caches) -> None:
    forge.set_files(made, put(VALUES, SCORE, 5))
    broken, whole = made.files()
    forge.path_of(broken).write_bytes(b"PAR1 and no more PAR1")
    code, found = audit(caches, made)
    assert code == 1
    assert {(d["file"], d["what"]) for d in found["differences"]} >= {(broken, "content"), (whole, "values")}


def test_totals_and_cut_lists(made: Made, caches: Caches) -> None:
    forge.set_manifests(made, lambda manifests: manifests)
    snapshot = made.open().current_snapshot()
    assert snapshot is not None
    forge.cut_blocks(snapshot.manifest_list, 1)
    code, found = audit(caches, made)
    assert code == 1
    assert {(d["by"], d["what"], d["says"], d["has"]) for d in found["differences"]} == {
        ("summary", "total-records", "8", "4"),
        ("summary", "total-data-files", "2", "1"),
    }


def test_only_the_selected_columns_of_the_selected_snapshot(made: Made, caches: Caches) -> None:
    forge.set_files(made, put(VALUES, SCORE, 5))
    code, found = audit(caches, made, "--columns", "id,name", "--filter", "id < 0")
    assert (code, found["differences"]) == (0, [])
    names = set(itertools.chain.from_iterable((c["name"] for c in f["columns"]) for f in found["files"]))
    assert names == {"id", "name"}
    code, _ = audit(caches, made, "--columns", "score")
    assert code == 1


class TestALoad:
    """A load compares what costs next to nothing: bounds of the filter's columns, and null counts."""

    @pytest.mark.parametrize("lie", ["lower bound", "upper bound", "no nulls"])
    def test_is_refused_where_a_filter_could_leave_rows_out(self, lie: str, made: Made, private: Private) -> None:
        change, ((column, what, _),) = LIES[lie]
        forge.set_files(made, change)
        true_of_some = f"{column} IS NOT NULL OR region IS NULL"
        cache = private(["--metadata", made.metadata, "--filter", true_of_some])
        reason = str(cache.wait("Failed"))
        for part in (f'column "{column}"', "the manifest says", what, "cacheserver audit", ".parquet"):
            assert part in reason

    def test_is_refused_for_a_footer(self, made: Made, private: Private) -> None:
        liar = made.files()[0]
        forge.set_footer_bytes(liar, long(LAST), long(FIRST + 2))
        cache = private(["--metadata", made.metadata, "--filter", "id > 5"])
        reason = str(cache.wait("Failed"))
        for part in (liar, 'column "id": the footer says maximum', str(FIRST + 2), str(LAST)):
            assert part in reason

    @pytest.mark.parametrize("flags", [(), ("--filter", "region >= 'a' AND score IS NOT NULL")], ids=["all", "filter"])
    def test_goes_on_where_nothing_is_left_out(self, flags: tuple[str, ...], made: Made, private: Private) -> None:
        forge.set_files(made, put(LOWER, ID, long(FIRST + 1)))
        forge.set_footer_bytes(made.files()[0], long(LAST), long(FIRST + 2))
        cache = private(["--metadata", made.metadata, *flags])
        cache.wait("Ready")

    def test_logs_null_counts_that_differ(self, made: Made, private: Private) -> None:
        liar = made.files()[0]
        after_minimum = long(FIRST) + b"\x16"  # null_count in Thrift's compact form, zigzag
        forge.set_footer_bytes(liar, after_minimum + b"\x02", after_minimum + b"\x06")
        cache = private(["--metadata", made.metadata])
        cache.wait("Ready")
        log = cache.log("local")
        assert "the footer says 3 nulls, the rows have 1" in log
        assert liar in log


AGAINST = Path(__file__).parents[2] / "docs/examples/against.py"


@pytest.mark.parametrize("engine", ["duckdb", pytest.param("spark", marks=pytest.mark.night)])
def test_the_script_of_the_docs_compares_an_audit_with_another_engine(
    engine: str, table: Table, caches: Caches
) -> None:
    python = sys.executable if engine == "duckdb" else os.environ.get("DATACACHE_SPARK_PYTHON")
    if not python:
        pytest.skip("no DATACACHE_SPARK_PYTHON given: run 'make test-conformance'")

    def run(found: dict[str, Any]) -> tuple[int, str]:
        command = [python, str(AGAINST), "--against", engine]
        done = subprocess.run(
            command, input=json.dumps(found), capture_output=True, text=True, timeout=limit(), check=False
        )
        return done.returncode, done.stdout + done.stderr[-2000:]

    _, found = audit(caches, table("many_files"))
    found["files"] = found["files"][:3]
    code, said = run(found)
    assert code == 0, said
    assert f"nothing differs in {len(found['files'])} files" in said
    if engine == "duckdb":
        found["files"][0]["rows"] += 1
        found["files"][1]["columns"][0]["nulls"] += 1
        found["files"][2]["columns"][0]["max"] = "-1"
        code, said = run(found)
        assert code == 1
        assert len(said.splitlines()) == 3
