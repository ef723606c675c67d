# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tables written by Apache Spark: the cache serves the rows that Spark reads, or the correct ones if Spark errs.

CI makes only the tables whose rows were deleted, updated and merged.
"""

# ruff: noqa: E501
# Statements and conditions are easier to read on one line.

from __future__ import annotations

import math
import os
import pickle
import struct
import subprocess
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
import upserts
from client import Client
from fuzz.footers import DATA_PAGE_V2, codecs_of, pages
from lake import Made, Selection
from server import Cache, Caches

PROGRAM = Path(__file__).with_name("spark") / "tables.py"
CHANGED = ["v1_copy", "v2_copy", "v2_merge", "v3_merge"]
TABLES = [
    *CHANGED, "maintained", "audited", "audited_expired", "evolved", "hive_float", "hive_int",
    "hive_decimal", "hive_date", "hive_string", "decimal_twins", "hive_twins", "empty_string", "uuid_twins", "floats", "float_files", "float_widened", "int96", "codecs_iceberg",
    "codecs_spark", "defaults", *upserts.TABLES,
]  # fmt: skip
night = pytest.mark.night

LINEAGE = ("_row_id", "_last_updated_sequence_number")

Connect = Callable[[Cache], Client]
Serve = Callable[..., pa.Table]
Row = dict[str, Any]


@pytest.fixture(scope="module")
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The tables, created in one Spark session: all, if a test of the night was selected."""
    jars = request.config.getoption("--spark-jars")
    python = os.environ.get("DATACACHE_SPARK_PYTHON")
    if jars is None or not python:
        pytest.skip("no --spark-jars and DATACACHE_SPARK_PYTHON given: run 'make test-conformance'")
    folder = tmp_path_factory.mktemp("spark")
    everything = any(item.get_closest_marker("night") for item in request.session.items if item.path == request.path)
    models = upserts.write(folder / "flink", seed=1) if everything else {}
    out = folder / "made.pickle"
    command = [python, str(PROGRAM), str(jars), str(folder), str(out), *([] if everything else ["changed"])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, cwd=folder)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    made = pickle.loads(out.read_bytes())
    assert sorted(made) == sorted([*TABLES, "lineage_merge", "lineage_copy", "folder"] if everything else CHANGED)
    for name, model in models.items():
        made[name]["model"] = model
    return made


@pytest.fixture
def serve(written: dict[str, dict[str, Any]], caches: Caches, connect: Connect) -> Serve:
    """A function that reads a table, or its rows that a filter keeps, through a cache."""

    def read(name: str, where: str = "") -> pa.Table:
        made = Made(name, written[name]["folder"])
        return connect(caches.of(made, Selection(where=where))).table()

    return read


def canonical(value: Any) -> Any:
    """Converts a value to Spark's Python form, and NaN to a value that equals itself."""
    match value:
        case float():
            return struct.pack(">d", math.nan if math.isnan(value) else value)
        case datetime():
            return value.replace(tzinfo=None)
        case UUID():
            return str(value)
        case dict():
            return tuple((k, canonical(v)) for k, v in value.items())
        case list() | tuple():
            return tuple(canonical(v) for v in value)
    return value


def counted(rows: list[Any]) -> Counter[Any]:
    """The number of occurrences of each row."""
    return Counter(canonical(row) for row in rows)


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    """A table's rows."""
    return [tuple(row.values()) for row in table.to_pylist(maps_as_pydicts=None)]


@pytest.mark.parametrize(
    "name", [*CHANGED, *(pytest.param(name, marks=night) for name in TABLES if name not in CHANGED)]
)
def test_a_cache_serves_what_spark_wrote(name: str, written: dict[str, dict[str, Any]], serve: Serve) -> None:
    got, want = serve(name), written[name]
    assert got.column_names == want["columns"]
    assert counted(rows_of(got)) == counted(want["rows"])


@night
def test_a_folder_that_spark_wrote(
    written: dict[str, dict[str, Any]], private: Callable[..., Cache], connect: Connect
) -> None:
    want = written["folder"]
    cache = private(["--files", want["folder"]])
    cache.wait("Ready")
    got = connect(cache).table()
    assert got.column_names == want["columns"]
    assert counted(rows_of(got)) == counted(want["rows"])


@night
@pytest.mark.parametrize("name", upserts.TABLES)
def test_upserts_as_flink_writes_them(name: str, written: dict[str, dict[str, Any]], serve: Serve) -> None:
    """Also asserts that the rows would be others if a reader broke one of the rules for deletes."""
    table: upserts.Upserts = written[name]["model"]
    _, unseen = upserts.TABLES[name]
    want = counted(table.model())
    assert {mistake for mistake in upserts.MISTAKES if counted(table.read(mistake)) == want} == unseen
    assert counted(table.read()) == want
    snapshot = Made(name, written[name]["folder"]).open().current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    for content, total in [("data", "records"), ("equality", "equality-deletes"), ("position", "position-deletes")]:
        count = sum(len(file.rows) for file in table.files if file.content == content)
        assert snapshot.summary[f"total-{total}"] == str(count) != "0"
    assert counted(written[name]["rows"]) == want
    assert counted(rows_of(serve(name))) == want


@night
@pytest.mark.parametrize("name", ["lineage_merge", "lineage_copy"])
def test_row_lineage(name: str, written: dict[str, dict[str, Any]], caches: Caches, connect: Connect) -> None:
    want = written[name]
    made = Made(name, want["folder"])
    rows = connect(caches.of(made, Selection(columns=("id", "name", *LINEAGE)), mode="cluster")).table()
    assert rows.column_names == want["columns"]
    assert counted(rows_of(rows)) == counted(want["rows"])
    assert connect(caches.of(made)).table().column_names == ["id", "name"]
    for where, keep in {
        "_row_id < 5 OR _row_id = 22": lambda r: r[2] < 5 or r[2] == 22,
        "_last_updated_sequence_number > 2 AND id < 20": lambda r: r[3] > 2 and r[0] < 20,
    }.items():
        rows = connect(caches.of(made, Selection(where=where))).table()
        assert counted(rows_of(rows)) == counted([r[:2] for r in want["rows"] if keep(r)])


@night
@pytest.mark.parametrize("name", ["codecs_iceberg", "codecs_spark"])
def test_the_files_of_every_codec_are_what_they_should_be(name: str, written: dict[str, dict[str, Any]]) -> None:
    seen: set[tuple[str, str]] = set()
    for path in Made(name, written[name]["folder"]).files():
        content = Path(path.removeprefix("file:")).read_bytes()
        version = "v2" if any(header[1].value == DATA_PAGE_V2 for _, _, header in pages(content)) else "v1"
        seen |= {(codec, version) for codec in codecs_of(content)}
    codecs = {"UNCOMPRESSED", "SNAPPY", "GZIP", "ZSTD", "LZ4", "LZ4_RAW"}
    versions = ["v1"] if name == "codecs_iceberg" else ["v1", "v2"]
    assert seen == {(codec, version) for codec in codecs for version in versions}


FILTERS: list[tuple[str, str, Callable[[Row], bool]]] = [
    ("v2_copy", "id = 77", lambda r: r["id"] == 77),
    ("v2_copy", "seen < TIMESTAMP '1970-01-02T00:00Z' AND flag", lambda r: r["seen"] is not None and r["seen"] < datetime(1970, 1, 2) and r["flag"]),
    ("v2_merge", "name = 'updated' AND price < -20", lambda r: r["name"] == "updated" and r["price"] < -20),
    ("v3_merge", "small IS NULL OR name LIKE 'name 3%'", lambda r: r["small"] is None or (r["name"] or "").startswith("name 3")),
    ("maintained", "name IN ('name 1', 'name 4')", lambda r: r["name"] in ("name 1", "name 4")),
    ("evolved", "id >= 48", lambda r: r["id"] >= 48),
    ("evolved", "new IS NULL AND a < 3", lambda r: r["new"] is None and r["a"] < 3),
    ("evolved", "s.x > 40", lambda r: r["s"] is not None and r["s"]["x"] > 40),
    ("evolved", "gone IS NULL", lambda r: r["gone"] is None),
    ("hive_float", "c = 0.5", lambda r: r["c"] == 0.5),
    ("hive_float", "c > 0.5 AND id < 5", lambda r: r["c"] > 0.5 and r["id"] < 5),
    ("hive_int", "c = 1", lambda r: r["c"] == 1),
    ("hive_decimal", "c = -1.25", lambda r: float(r["c"]) == -1.25),
    ("hive_date", "c >= DATE '2024-02-29'", lambda r: str(r["c"]) >= "2024-02-29"),
    ("hive_string", "c = 'a/b 1'", lambda r: r["c"] == "a/b 1"),
    ("decimal_twins", "a = 1 AND b = -0.25", lambda r: r["a"] == 1 and r["b"] is not None and float(r["b"]) == -0.25),
    ("decimal_twins", "b IS NULL", lambda r: r["b"] is None),
    ("hive_twins", "b = -1.5 AND a = 0.25", lambda r: float(r["b"]) == -1.5 and float(r["a"]) == 0.25),
    ("empty_string", "c = ''", lambda r: r["c"] == ""),
    ("empty_string", "c <= 'x'", lambda r: r["c"] is not None),
    ("uuid_twins", "w = 'ffffffff-ffff-ffff-ffff-ffffffffffff' AND u <> '00000000-0000-0000-0000-0000000000ff'", lambda r: r["u"].startswith("f79c")),
    ("int96", "ts < TIMESTAMP '1677-09-21 00:12:43Z'", lambda r: r["ts"] < datetime(1677, 9, 21, 0, 12, 43)),
    ("defaults", "long = 9007199254740993 AND date = DATE '2024-02-29' AND cost > 0 AND uuid = 'f79c3e09-677c-4bbd-a479-3f349cb785e7'", lambda r: True),
    ("defaults", "long = 9007199254740992 OR most < 0 OR wall IS NULL", lambda r: False),
]  # fmt: skip


def check_filter(
    name: str, where: str, keep: Callable[[Row], bool], written: dict[str, dict[str, Any]], serve: Serve
) -> None:
    """Asserts that a cache with a filter serves the rows that Python's predicate keeps."""
    want = written[name]
    kept = [row for row in want["rows"] if keep(dict(zip(want["columns"], row, strict=True)))]
    assert counted(rows_of(serve(name, where))) == counted(kept)


@night
@pytest.mark.parametrize(("name", "where", "keep"), FILTERS, ids=[f"{name}: {where}" for name, where, _ in FILTERS])
def test_filters(
    name: str, where: str, keep: Callable[[Row], bool], written: dict[str, dict[str, Any]], serve: Serve
) -> None:
    check_filter(name, where, keep, written, serve)


def single(x: float) -> float:
    """The nearest 32-bit float."""
    return struct.unpack("f", struct.pack("f", x))[0]


FLOATS: list[tuple[str, Callable[[float], bool]]] = [
    ("{} > 0", lambda x: x > 0),
    ("{} <= 0", lambda x: x <= 0),
    ("NOT {} > 0", lambda x: not x > 0),
    ("{} <> -2.5", lambda x: x != -2.5),
    ("{} IS NAN", math.isnan),
    ("{} IS NOT NAN AND {} >= -2.5", lambda x: x >= -2.5),
    ("{} = 0", lambda x: x == 0),
    ("{} IN (-2.5, 0)", lambda x: x in (-2.5, 0)),
]


@night
@pytest.mark.parametrize("name", ["floats", "float_files", "float_widened"])
@pytest.mark.parametrize(("where", "keep"), FLOATS, ids=[where for where, _ in FLOATS])
def test_nan_passes_no_comparison_but_unequal(
    name: str, where: str, keep: Callable[[float], bool], written: dict[str, dict[str, Any]], serve: Serve
) -> None:
    """As in IEEE 754, both in files skipped by statistics and in files that are read."""
    check_filter(name, where.format("f", "f"), lambda r: r["f"] is not None and keep(r["f"]), written, serve)


@night
@pytest.mark.parametrize("name", ["floats", "float_files"])
@pytest.mark.parametrize("text", ["1e-45", "0.1", "16777217"])
def test_a_literal_is_rounded_to_a_float_column(
    name: str, text: str, written: dict[str, dict[str, Any]], serve: Serve
) -> None:
    """A float column then equals the literal that was stored in it; for double columns nothing is rounded."""
    check_filter(name, f"f = {text}", lambda r: r["f"] is not None and r["f"] == single(float(text)), written, serve)
    check_filter(name, f"d = {text}", lambda r: r["d"] is not None and r["d"] == float(text), written, serve)
