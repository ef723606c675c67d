# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A table with every kind of column that filters compare, and random WHERE clauses on it with DuckDB's equivalents.

DuckDB sorts NaN above all numbers and counts it as equal to itself; in our filters only <> is true of it.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa
from lake import Lake, Made
from values import maybe

ROWS = 6_000
_EPOCH = dt.datetime(2024, 1, 1)
_NAN = float("nan")
_NAMES = ["", "ash", "birch", "bir_h", "cedar", "ceder", "100%", "it's", "Grüße", "日本語", "a!b", "zz"]


class Clause(NamedTuple):
    """A condition in our language and in DuckDB's."""

    ours: str
    duck: str


def _rows(r: random.Random, n: int) -> pa.Table:
    def column(make: Callable[[random.Random], Any], of: pa.DataType) -> pa.Array:
        return pa.array([maybe(r, make, 0.15) for _ in range(n)], of)

    floats = [0.0, -0.0, 1.5, -2.25, float("inf"), float("-inf"), _NAN, _NAN, 1e-30]
    return pa.table({
        "n": pa.array(range(n), pa.int64()),
        "small": column(lambda q: q.randint(-20, 20), pa.int32()),
        "price": column(lambda q: q.choice([*floats, q.randint(-99, 99) / 4]), pa.float64()),
        "ratio": column(lambda q: q.choice([*floats, q.randint(-99, 99) / 4]), pa.float32()),
        "money": column(lambda q: Decimal(q.randint(-9999, 9999)).scaleb(-2), pa.decimal128(9, 2)),
        "exact": column(lambda q: Decimal(q.randint(-9999, 9999)).scaleb(-3), pa.decimal128(38, 10)),
        "day": column(lambda q: dt.date(2024, 1, 1) + dt.timedelta(q.randrange(60)), pa.date32()),
        "clock": column(lambda q: dt.time(q.randrange(24), 0, 0, q.choice([0, 1, 500_000])), pa.time64("us")),
        "seen": column(lambda q: _EPOCH + dt.timedelta(minutes=30 * q.randrange(99)), pa.timestamp("us")),
        "zoned": column(lambda q: (_EPOCH + dt.timedelta(minutes=30 * q.randrange(99))).replace(tzinfo=dt.UTC),
                        pa.timestamp("us", "UTC")),
        "name": column(lambda q: q.choice(_NAMES), pa.string()),
        "raw": column(lambda q: q.choice([b"", b"\x00", b"\xff", b"ab"]), pa.binary()),
        "flag": column(lambda q: q.random() < 0.5, pa.bool_()),
        "point": column(lambda q: {"x": maybe(q, lambda z: z.randint(-5, 5)),
                                   "label": maybe(q, lambda z: z.choice(_NAMES))},
                        pa.struct([("x", pa.int32()), ("label", pa.string())])),
    })  # fmt: skip


def made(lake: Lake) -> Made:
    """The table, in several files and row groups."""
    rows = _rows(random.Random(1), ROWS)
    parts = [rows.slice(0, 2500), rows.slice(2500, 100), rows.slice(2600)]
    return lake.pin(
        "selections", lake.create("selections", rows.schema, parts, properties={"write.parquet.row-group-limit": "700"})
    )


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _zoned(r: random.Random) -> Clause:
    at, offset = _EPOCH + dt.timedelta(minutes=30 * r.randrange(99)), r.choice(["Z", "+01:00", "-05:30"])
    text = at.isoformat(r.choice([" ", "T"]))
    return Clause(f"'{text}{offset}'", f"TIMESTAMPTZ '{text}{'+00:00' if offset == 'Z' else offset}'")


def _same(text: str) -> Clause:
    return Clause(text, text)


#: Columns and random literals of their types. Floats are multiples of a quarter, so float and double agree.
_LITERALS: dict[str, Callable[[random.Random], Clause]] = {
    "n": lambda r: _same(str(r.randrange(-10, ROWS + 10))),
    "small": lambda r: _same(str(r.randint(-22, 22))),
    "price": lambda r: _same(str(r.randint(-99, 99) / 4)),
    "ratio": lambda r: _same(str(r.randint(-99, 99) / 4)),
    "money": lambda r: _same(str(Decimal(r.randint(-9999, 9999)).scaleb(-2))),
    "exact": lambda r: _same(str(Decimal(r.randint(-9999, 9999)).scaleb(-3))),
    "day": lambda r: _same(f"DATE '{dt.date(2024, 1, 1) + dt.timedelta(r.randrange(60))}'"),
    "clock": lambda r: _same(f"TIME '{dt.time(r.randrange(24), 0, 0, r.choice([0, 500_000])).isoformat()}'"),
    "seen": lambda r: _same(f"TIMESTAMP '{_EPOCH + dt.timedelta(minutes=30 * r.randrange(99))}'"),
    "zoned": _zoned,
    "name": lambda r: _same(_text(r.choice(_NAMES))),
    "raw": lambda r: r.choice([Clause("X''", "''::BLOB"), Clause("X'00'", r"'\x00'::BLOB"),
                               Clause("X'6162'", "'ab'::BLOB")]),
    "point.x": lambda r: _same(str(r.randint(-6, 6))),
    "point.label": lambda r: _same(_text(r.choice(_NAMES))),
}  # fmt: skip

_FLOATS = ("price", "ratio")


def _compare(r: random.Random, column: str) -> Clause:
    op, literal = r.choice(["=", "<>", "!=", "<", "<=", ">", ">="]), _LITERALS[column](r)
    duck = f"{column} {op} {literal.duck}"
    if column in _FLOATS and op in (">", ">="):
        duck = f"({duck} AND NOT isnan({column}))"
    if r.random() < 0.2 and op in ("=", "<>", "!="):
        return Clause(f"{literal.ours} {op} {column}", duck)
    return Clause(f"{column} {op} {literal.ours}", duck)


def _like(r: random.Random, column: str) -> Clause:
    negated, prefix = r.choice(["", "NOT "]), r.choice(_NAMES)[: r.randint(0, 4)]
    if set(prefix) & set("%_!"):
        prefix = prefix.replace("!", "!!").replace("%", "!%").replace("_", "!_")
        return _same(f"{column} {negated}LIKE {_text(prefix + '%')} ESCAPE '!'")
    return _same(f"{column} {negated}LIKE {_text(prefix + '%')}")


def _leaf(r: random.Random) -> Clause:
    column = r.choice([*_LITERALS, "flag", "flag"])
    negated = r.choice(["", "NOT "])
    if column == "flag":
        return _same(r.choice(["flag", "NOT flag", "flag = TRUE", "flag <> false", "flag IS NULL", "flag IS NOT NULL"]))
    kind = r.randrange(6)
    if kind == 0:
        return _same(f"{column} IS {negated}NULL")
    if kind == 1:
        some = [_LITERALS[column](r) for _ in range(r.randint(1, 5))]
        return Clause(*(f"{column} {negated}IN ({', '.join(v)})" for v in zip(*some, strict=True)))
    if kind == 2:
        low, high = _LITERALS[column](r), _LITERALS[column](r)
        return Clause(*(f"{column} {negated}BETWEEN {a} AND {b}" for a, b in zip(low, high, strict=True)))
    if kind == 3 and column in ("name", "point.label"):
        return _like(r, column)
    if kind == 3 and column in _FLOATS:
        return Clause(f"{column} IS {negated}NAN", f"{negated}coalesce(isnan({column}), false)")
    return _compare(r, column)


def clause(r: random.Random, depth: int = 3) -> Clause:
    """A random condition."""
    kind = r.random() if depth else 0
    if kind < 0.4:
        return _leaf(r)
    if kind < 0.5:
        inner = clause(r, depth - 1)
        return Clause(f"NOT ({inner.ours})", f"NOT ({inner.duck})")
    terms = [clause(r, depth - 1) for _ in range(r.randint(2, 3))]
    word = r.choice([" AND ", " OR ", " and ", " or "])
    return Clause(*(word.join(f"({text})" for text in texts) for texts in zip(*terms, strict=True)))


class Oracle:
    """DuckDB over the rows of a cache."""

    def __init__(self, whole: pa.Table) -> None:
        self._db = duckdb.connect()
        self._db.sql("SET TimeZone = 'UTC'")
        self._db.register("whole", whole.append_column("row_number", pa.array(range(whole.num_rows), pa.int64())))

    def rows(self, where: str) -> list[int]:
        """The numbers of the rows that a condition of DuckDB selects, in order."""
        found = self._db.sql(f"SELECT row_number FROM whole WHERE {where} ORDER BY row_number")
        return [row for (row,) in found.fetchall()]

    def close(self) -> None:
        """Closes the database."""
        self._db.close()
