# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which files a filter leaves: by partition exactly those that Iceberg's Java library reads, and never less than match.

Tables are written by Java, with random partitions, and planned by Java and by the cache with random filters. --pruning
says how many tables there are of each type and transform.
"""

from __future__ import annotations

import decimal
import json
import os
import random
import subprocess
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from seeds import SEED
from server import Caches

REPOSITORY = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("java") / "PlanFiles.java"
EPOCH = datetime(1970, 1, 1)
DAY = 24 * 60 * 60 * 10**6

Value = Any  # a value of a column, in a Python type that has the column's order; None is null
Keep = Callable[[Value], bool]


@dataclass(frozen=True)
class Kind:
    """A column type: random values, and how values are written in JSON and in SQL."""

    type: str
    draw: Callable[[random.Random], Value]
    near: Callable[[random.Random, Value], Value]  # another value, close to one
    json: Callable[[Value], Any]
    sql: Callable[[Value], str]
    transforms: tuple[str, ...] = ()
    v3: bool = False


def _integer(bits: int) -> Kind:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1

    def draw(r: random.Random) -> int:
        return r.choice([r.randint(-40, 40), r.randint(-40, 40), r.randint(low, high), low, high])

    def near(r: random.Random, v: int) -> int:
        return min(high, max(low, v + r.choice([-11, -10, -1, 0, 0, 1, 10])))

    name = {32: "int", 64: "long"}[bits]
    return Kind(name, draw, near, int, str, ("identity", "void", "bucket[7]", "truncate[10]"))


def _float(name: str) -> Kind:
    def draw(r: random.Random) -> float:
        return r.choice([-2.5, 0.0, 0.5, 1.0, 2.0**90, float(r.randint(-9, 9))])

    return Kind(name, draw, lambda r, v: v + r.choice([0.0, 0.0, 0.5, -0.5]), float, repr, ("identity", "void"))


def _decimal(precision: int, scale: int) -> Kind:
    limit = (
        10**precision - 100
    )  # Java cannot write a partition of more digits, as truncation makes it of the lowest values

    def draw(r: random.Random) -> int:
        return r.choice([r.randint(-300, 300), r.randint(-300, 300), r.randint(-limit, limit), limit, -limit])

    def near(r: random.Random, v: int) -> int:
        return min(limit, max(-limit, v + r.choice([-50, -49, -1, 0, 0, 1, 50])))

    def text(v: int) -> str:
        with decimal.localcontext(prec=60):
            return f"{decimal.Decimal(v).scaleb(-scale):.{scale}f}"

    name = f"decimal({precision}, {scale})"
    return Kind(name, draw, near, text, text, ("identity", "void", "bucket[7]", "truncate[50]"))


def _micros(r: random.Random) -> int:
    hour = DAY // 24
    whole = r.choice([hour * r.randint(-30, 30), DAY * r.randint(-40, 40), DAY * r.randint(-20_000, 20_000)])
    return whole + r.choice([0, 0, 1, -1, r.randrange(DAY)])


def _near_micros(r: random.Random, v: int) -> int:
    return v + r.choice([0, 0, 0, 1, -1, DAY // 24, -DAY // 24, DAY, -DAY, 31 * DAY, 366 * DAY])


def _iso(v: int, zone: str = "") -> str:
    return (EPOCH + timedelta(microseconds=v)).isoformat(timespec="microseconds") + zone


def _date() -> Kind:
    def text(v: int) -> str:
        return (date(1970, 1, 1) + timedelta(days=v)).isoformat()

    return Kind(
        "date",
        lambda r: r.choice([r.randint(-40, 40), r.randint(-800, 800), r.randint(-20_000, 20_000)]),
        lambda r, v: v + r.choice([0, 0, 1, -1, 31, -31, 366]),
        text,
        lambda v: f"DATE '{text(v)}'",
        ("identity", "void", "bucket[7]", "year", "month", "day"),
    )


def _timestamp(name: str) -> Kind:
    zone, nanos = "+00:00" if "tz" in name else "", name.endswith("_ns")

    def text(v: int) -> str:
        return _iso(v // 1000) + f"{v % 1000:03}" + zone if nanos else _iso(v, zone)

    def draw(r: random.Random) -> int:
        return _micros(r) * 1000 + r.choice([0, 0, 1, 999]) if nanos else _micros(r)

    def near(r: random.Random, v: int) -> int:
        return _near_micros(r, v // 1000) * 1000 + r.choice([v % 1000, 0]) if nanos else _near_micros(r, v)

    transforms = ("identity", "void", "bucket[7]", "year", "month", "day", "hour")
    return Kind(name, draw, near, text, lambda v: f"TIMESTAMP '{text(v)}'", transforms, v3=nanos)


def _time() -> Kind:
    def text(v: int) -> str:
        return _iso(v).split("T")[1]

    def draw(r: random.Random) -> int:
        return r.choice([0, DAY - 1, r.randrange(DAY)])

    return Kind(
        "time", draw, lambda r, v: (v + r.choice([0, 0, 1, -1])) % DAY, text, lambda v: f"TIME '{text(v)}'",
        ("identity", "void", "bucket[7]"),
    )  # fmt: skip


def _string() -> Kind:
    letters = "aab\x00zü漢\U0001f600"

    def draw(r: random.Random) -> str:
        return "".join(r.choice(letters) for _ in range(r.randint(0, 5)))

    def near(r: random.Random, v: str) -> str:
        return r.choice([v, v, v[:-1], v[:3], v[:2], v + "a", v + "\U0001f600"])

    def sql(v: str) -> str:
        return "'" + v.replace("'", "''") + "'"

    return Kind("string", draw, near, str, sql, ("identity", "void", "bucket[7]", "truncate[3]"))


def _bytes(name: str, length: int | None, transforms: tuple[str, ...]) -> Kind:
    def draw(r: random.Random) -> bytes:
        return bytes(r.choice([0, 1, 127, 128, 255]) for _ in range(r.randint(0, 5) if length is None else length))

    def near(r: random.Random, v: bytes) -> bytes:
        return r.choice([v, v, v[:-1], v[:3], v + b"\xff"]) if length is None else r.choice([v, draw(r)])

    return Kind(name, draw, near, bytes.hex, lambda v: f"X'{v.hex()}'", transforms)


def _uuid() -> Kind:
    def text(v: bytes) -> str:
        return str(uuid.UUID(bytes=v))

    # Java 1.10 compares UUIDs by unsigned bytes, as the specification wants
    def draw(r: random.Random) -> bytes:
        return bytes([r.choice([0, 127, 128, 255])]) + bytes(14) + bytes([r.randrange(3)])

    return Kind(
        "uuid", draw, lambda r, v: r.choice([v, draw(r)]), text, lambda v: f"'{text(v)}'",
        ("identity", "void", "bucket[7]"),
    )  # fmt: skip


KINDS = [
    Kind(
        "boolean",
        lambda r: r.random() < 0.5,
        lambda r, v: r.random() < 0.5,
        bool,
        lambda v: str(v).lower(),
        ("identity", "void"),
    ),
    _integer(32), _integer(64), _float("float"), _float("double"),
    _decimal(9, 2), _decimal(20, 5), _decimal(38, 0), _date(), _time(),
    _timestamp("timestamp"), _timestamp("timestamptz"), _timestamp("timestamp_ns"), _timestamp("timestamptz_ns"),
    # without identity: Java 1.10 writes such a partition with a length, which the manifest's schema does not say
    _string(), _uuid(), _bytes("fixed[4]", 4, ("void", "bucket[7]")),
    _bytes("binary", None, ("identity", "void", "bucket[7]", "truncate[3]")),
]  # fmt: skip


@dataclass
class Filter:
    """A condition in SQL, in Java's JSON, and as Python's function."""

    sql: str
    json: dict[str, Any]
    keep: Keep


COMPARISONS: list[tuple[str, str, Callable[[Any, Any], bool]]] = [
    ("=", "eq", lambda a, b: a == b),
    ("<>", "not-eq", lambda a, b: a != b),
    ("<", "lt", lambda a, b: a < b),
    ("<=", "lt-eq", lambda a, b: a <= b),
    (">", "gt", lambda a, b: a > b),
    (">=", "gt-eq", lambda a, b: a >= b),
]


def _not_null(expression: dict[str, Any]) -> dict[str, Any]:
    """In Java null is unequal to everything and less than it; in SQL such a comparison is not true."""
    return {"type": "and", "left": {"type": "not-null", "term": "c"}, "right": expression}


def term(r: random.Random, kind: Kind, values: list[Value]) -> Filter:
    """A random comparison with values close to some."""

    def literal() -> Value:
        return kind.near(r, r.choice(values))

    what = r.random()
    if what < 0.06:
        return Filter("c IS NULL", {"type": "is-null", "term": "c"}, lambda v: v is None)
    if what < 0.12:
        return Filter("c IS NOT NULL", {"type": "not-null", "term": "c"}, lambda v: v is not None)
    if what < 0.28:
        among = [literal() for _ in range(r.randint(2, 4))]
        listed = ", ".join(kind.sql(v) for v in among)
        encoded = {"term": "c", "values": [kind.json(v) for v in among]}
        if r.random() < 0.4:
            unequal = _not_null({"type": "not-in", **encoded})
            return Filter(f"c NOT IN ({listed})", unequal, lambda v: v is not None and v not in among)
        return Filter(f"c IN ({listed})", {"type": "in", **encoded}, lambda v: v is not None and v in among)
    if what < 0.5 and kind.type == "string":
        prefix = r.choice(values)[:4] or "a"
        prefix = prefix[: r.randint(1, len(prefix))]
        if r.random() < 0.5:
            unlike = _not_null({"type": "not-starts-with", "term": "c", "value": prefix})
            return Filter(f"c NOT LIKE '{prefix}%'", unlike, lambda v: v is not None and not v.startswith(prefix))
        like = {"type": "starts-with", "term": "c", "value": prefix}
        return Filter(f"c LIKE '{prefix}%'", like, lambda v: v is not None and v.startswith(prefix))
    value = literal()
    sql, name, compare = r.choice(COMPARISONS if kind.type != "boolean" else COMPARISONS[:2])
    encoded = _not_null({"type": name, "term": "c", "value": kind.json(value)})
    return Filter(f"c {sql} {kind.sql(value)}", encoded, lambda v: v is not None and compare(v, value))


def condition(r: random.Random, kind: Kind, values: list[Value], depth: int = 2) -> Filter:
    """A random condition."""
    if depth == 0 or r.random() < 0.6:
        return term(r, kind, values)
    a, b = condition(r, kind, values, depth - 1), condition(r, kind, values, depth - 1)
    if r.random() < 0.5:
        both = {"type": "and", "left": a.json, "right": b.json}
        return Filter(f"({a.sql} AND {b.sql})", both, lambda v: a.keep(v) and b.keep(v))
    either = {"type": "or", "left": a.json, "right": b.json}
    return Filter(f"({a.sql} OR {b.sql})", either, lambda v: a.keep(v) or b.keep(v))


@dataclass
class Case:
    """A table, its files with their values, and filters."""

    kind: Kind
    transforms: list[str]
    metrics: bool
    files: dict[str, Value] = field(default_factory=dict)
    filters: list[Filter] = field(default_factory=list)
    request: dict[str, Any] = field(default_factory=dict)

    @property
    def java(self) -> bool:
        """Whether Java's plan is right.

        It takes the nanoseconds of an identity partition's filter for microseconds, and orders UUIDs as signed numbers.
        """
        return not ("identity" in self.transforms and (self.kind.v3 or self.kind.type == "uuid"))

    def wider(self, where: Filter) -> bool:
        """Whether the cache may read more files than Java.

        Java's arithmetic truncates the lowest integers to the highest ones; the cache knows LIKE as ranges.
        """
        return "truncate[10]" in self.transforms or "LIKE" in where.sql

    def __str__(self) -> str:
        return f"{self.kind.type} by {' and '.join(self.transforms)}{' with metrics' * self.metrics}"


def make(r: random.Random, kind: Kind, transforms: list[str], metrics: bool, folder: Path) -> Case:
    """A random table, with its files on disk."""
    case = Case(kind, transforms, metrics)
    source = data_file(folder, pa.table({"id": [1]}, pa.schema([_field("id", pa.int64(), 1)])))
    near = [kind.draw(r) for _ in range(4)]
    commits = []
    for commit in range(2):
        files = []
        for i in range(r.randint(1, 7)):
            value = None if r.random() < 0.1 else r.choice([kind.draw(r), kind.near(r, r.choice(near))])
            path = folder / "data" / f"{commit}-{i}.parquet"
            os.link(source, path)
            case.files[str(path)] = value
            files.append({
                "path": str(path), "size": path.stat().st_size, "metrics": metrics, "old": r.random() < 0.5,
                "value": None if value is None else kind.json(value),
            } | (bounds(r, kind, value) if metrics else {}))  # fmt: skip
        commits.append(files)
    values = [v for v in case.files.values() if v is not None] or near
    case.filters = [condition(r, kind, values) for _ in range(12)]
    case.request = {
        "folder": str(folder), "version": 3 if kind.v3 else r.choice([1, 2]), "commits": commits,
        "schema": _schema(kind.type), "spec": _spec(transforms),
        "filters": [f.json for f in case.filters] if case.java else [],
    }  # fmt: skip
    return case


def _schema(kind: str) -> dict[str, Any]:
    named = [(1, "id", "long"), (2, "c", kind)]
    fields = [{"id": i, "name": name, "required": False, "type": typ} for i, name, typ in named]
    return {"type": "struct", "schema-id": 0, "fields": fields}


def _spec(transforms: list[str]) -> dict[str, Any]:
    named = enumerate(transforms)
    fields = [{"name": f"p{i}", "transform": t, "source-id": 2, "field-id": 1000 + i} for i, t in named]
    return {"spec-id": 0, "fields": fields}


def bounds(r: random.Random, kind: Kind, value: Value) -> dict[str, Any]:
    """Bounds as writers shorten them: a prefix, and for the upper one its successor."""
    if kind.type != "string" or value is None or len(value) < 2 or r.random() < 0.5:
        return {}
    return {"lower": value[:1], "upper": chr(ord(value[0]) + 1)}


def _field(name: str, typ: pa.DataType, number: int) -> pa.Field:
    return pa.field(name, typ, metadata={"PARQUET:field_id": str(number)})


def data_file(folder: Path, rows: pa.Table) -> Path:
    """A file without statistics, so that only the manifests decide whether it is read."""
    (folder / "data").mkdir(parents=True)
    path = folder / "data" / "source"
    pq.write_table(rows, path, write_statistics=False)
    return path


def cases(r: random.Random, each: int, folder: Path) -> list[Case]:
    """Tables of every type with one or two random transforms, one in four instead with metrics."""
    made = []
    for kind in KINDS * each:
        metrics = r.random() < 0.25
        transforms = [] if metrics else r.sample(kind.transforms, r.choice([1, 1, 2]))
        made.append(make(r, kind, transforms, metrics, folder / f"table-{len(made)}"))
    return made


Planned = tuple[Case, Filter, set[str] | None, set[str]]
Java = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]


def run(command: list[Any], given: str = "") -> str:
    """Runs a program and returns its output."""
    done = subprocess.run(
        command, input=given, capture_output=True, text=True, timeout=3600, check=False, cwd=REPOSITORY
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return done.stdout


@pytest.fixture(scope="module")
def java(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Java:
    """A function that has Java write tables and plan scans of them."""
    jars = request.config.getoption("--rest-catalog")
    if jars is None:
        pytest.skip("no --rest-catalog given: run 'make test-conformance'")
    jvm = ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]

    def ask(requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        folder = tmp_path_factory.mktemp("java")
        (folder / "request").write_text(json.dumps(requests))
        run([*jvm, "-cp", f"{jars}/*", PROGRAM, folder / "request", folder / "response"])
        return json.loads((folder / "response").read_text())

    return ask


@pytest.fixture(scope="module")
def planned(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, java: Java) -> list[Planned]:
    """Every table and filter, with the files that Java reads and those that the cache reads."""
    each: int = request.config.getoption("--pruning")  # pyright: ignore[reportAssignmentType]
    made = cases(random.Random(SEED), each, tmp_path_factory.mktemp("pruning"))
    answers = java([case.request for case in made])
    lines = [
        json.dumps({"metadata": answer["metadata"], "filter": f.sql})
        for case, answer in zip(made, answers, strict=True)
        for f in case.filters
    ]
    ours = iter(run(["go", "run", "./test/conformance/plans"], "\n".join(lines)).splitlines())
    return [
        (case, f, set(plan) if isinstance(plan, list) else None, set(json.loads(next(ours))))
        for case, answer in zip(made, answers, strict=True)
        for f, plan in zip(case.filters, answer["plans"] if case.java else case.filters, strict=True)
    ]


def test_files_are_pruned_as_java_prunes_them(planned: list[Planned]) -> None:
    """But for files of nulls, which the cache reads if it isn't told that a comparison excludes them."""
    wrong = [
        f"{case}: {f.sql}: java reads {files(case, java)}, the cache {files(case, ours)}"
        for case, f, java, ours in planned
        if java is not None
        and not case.metrics
        and not (java <= ours and (case.wider(f) or all(case.files[p] is None for p in ours - java)))
    ]
    assert not wrong, f"{len(wrong)} of {len(planned)}:\n" + "\n".join(wrong[:20])


def test_no_file_with_a_matching_row_is_pruned(planned: list[Planned]) -> None:
    wrong = [
        f"{case}: {f.sql}: not read {files(case, lost)}"
        for case, f, _, ours in planned
        if (lost := {path for path, value in case.files.items() if f.keep(value)} - ours)
    ]
    assert not wrong, f"{len(wrong)} of {len(planned)}:\n" + "\n".join(wrong[:20])


OLD = "1969-12-31T23:59:59.500000"
OLD_FILTERS = [
    "c < TIMESTAMP '1970-01-01'", f"c <= TIMESTAMP '{OLD}'", f"c = TIMESTAMP '{OLD}'", f"NOT c > TIMESTAMP '{OLD}'",
    f"c IN (TIMESTAMP '{OLD}', TIMESTAMP '1960-01-01')", f"c BETWEEN TIMESTAMP '1969-12-01' AND TIMESTAMP '{OLD}'",
]  # fmt: skip


def test_times_before_1970_that_old_writers_stored(java: Java, caches: Caches, tmp_path: Path) -> None:
    """Before Iceberg 0.10, writers stored their year, month, day and hour one too high, as those of 1970."""
    made = {}
    for transform in ("year", "month", "day", "hour"):
        schema = pa.schema([_field("id", pa.int64(), 1), _field("c", pa.timestamp("us"), 2)])
        rows = pa.table({"id": [1], "c": [datetime.fromisoformat(OLD)]}, schema)
        path = data_file(tmp_path / transform, rows)
        file = {"path": str(path), "size": path.stat().st_size, "metrics": False, "old": True, "value": OLD}
        made[transform] = {
            "folder": str(tmp_path / transform), "version": 1, "filters": [], "commits": [[file]],
            "schema": _schema("timestamp"), "spec": _spec([transform]),
        }  # fmt: skip
    lost = []
    for transform, answer in zip(made, java(list(made.values())), strict=True):
        for clause in OLD_FILTERS:
            done = caches.run("inspect", "--metadata", answer["metadata"], "--filter", clause)
            assert done.returncode == 0, done.stderr
            if done.stdout.splitlines()[-1].split()[2] != "1":
                lost.append(f"{transform}: {clause}")
    assert not lost, f"{len(lost)} of {len(made) * len(OLD_FILTERS)}:\n" + "\n".join(lost)


def files(case: Case, paths: set[str]) -> dict[str, Any]:
    """Files and their values, for messages."""
    return {Path(p).stem: v if (v := case.files[p]) is None else case.kind.json(v) for p in sorted(paths)}
