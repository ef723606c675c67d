# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Random WHERE clauses, as text and as functions of rows: SQL's three values, IEEE 754 for NaN."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import values
from .oracle import reach
from .schema import Field, Primitive, Schema, date_text, decimal_text, time_text, timestamp_text, uuid_text
from .table import Row

Truth = bool | None


@dataclass(frozen=True)
class Condition:
    """A clause and its value for a row."""

    text: str
    of: Callable[[Row], Truth]


def random_condition(
    r: random.Random, schema: Schema, rows: list[Row], often: frozenset[int] = frozenset(), depth: int = 2
) -> Condition | None:
    """A clause over the schema's columns, the fields of `often` above all; None if there are none to compare."""
    leaves = [(within, f) for within, f in schema.leaves() if f.type != Primitive("unknown")]
    if not leaves:
        return None
    if depth and r.random() < 0.5:
        parts = [random_condition(r, schema, rows, often, depth - 1) for _ in range(r.randint(1, 3))]
        return _join(r, [p for p in parts if p])
    preferred = [leaf for leaf in leaves if leaf[1].id in often]
    within, f = r.choice(preferred if preferred and r.random() < 0.5 else leaves)
    return _test(r, within, f, [v for v in (reach(row, within, f) for row in rows) if v is not None])


def _join(r: random.Random, parts: list[Condition]) -> Condition:
    if len(parts) == 1:
        (p,) = parts
        return Condition(f"NOT ({p.text})", lambda row: negate(p.of(row)))
    if r.random() < 0.5:
        return Condition(" AND ".join(f"({p.text})" for p in parts), lambda row: _all([p.of(row) for p in parts]))
    return Condition(
        " OR ".join(f"({p.text})" for p in parts), lambda row: negate(_all([negate(p.of(row)) for p in parts]))
    )


def negate(t: Truth) -> Truth:
    """NOT."""
    return None if t is None else not t


def _all(parts: list[Truth]) -> Truth:
    if False in parts:
        return False
    return None if None in parts else True


def quoted(name: str) -> str:
    """A column's name in double quotes."""
    return '"' + name.replace('"', '""') + '"'


def literal(t: Primitive, value: Any) -> str:
    """A literal for a column of a type."""
    match t.base:
        case "boolean":
            return "TRUE" if value else "FALSE"
        case "decimal":
            return decimal_text(value, t.parameters[1])
        case "date":
            return f"DATE '{date_text(value)}'"
        case "time":
            return f"TIME '{time_text(value)}'"
        case "timestamp" | "timestamp_ns":
            return f"TIMESTAMP '{timestamp_text(value, t.base.endswith('_ns'))}'"
        case "timestamptz" | "timestamptz_ns":
            return f"TIMESTAMP '{timestamp_text(value, t.base.endswith('_ns'))}+00:00'"
        case "string":
            return "'" + value.replace("'", "''") + "'"
        case "binary" | "fixed":
            return f"X'{value.hex()}'"
        case "uuid":
            return f"UUID '{uuid_text(value)}'"
    return repr(value)


def _comparable(t: Primitive, value: Any) -> bool:
    """Whether a literal can have this value."""
    return not isinstance(value, float) or abs(value) < float("inf")


def _less(a: Any, b: Any) -> bool:
    return (a.encode() < b.encode()) if isinstance(a, str) else a < b


def _test(r: random.Random, within: tuple[Field, ...], f: Field, known: list[Any]) -> Condition:
    t = f.type
    assert isinstance(t, Primitive)
    name = ".".join(quoted(part.name) for part in (*within, f))

    def pick() -> Any:
        for _ in range(20):
            if t.base in ("date", "timestamp", "timestamptz") and r.random() < 0.4:
                return r.choice([0, 0, *values.edges(t)])  # around 1970
            v = r.choice(known) if known and r.random() < 0.7 else values.primitive(r, t)
            if _comparable(t, v):
                return v
        return 0.0

    def test(text: str, of: Callable[[Any], bool]) -> Condition:
        def value(row: Row) -> Truth:
            v = reach(row, within, f)
            return None if v is None else of(v)

        return Condition(f"{name} {text}", value)

    kind = r.randrange(12)
    if kind == 0:
        null = r.random() < 0.5
        text = f"{name} IS {'' if null else 'NOT '}NULL"
        return Condition(text, lambda row: (reach(row, within, f) is None) == null)
    if kind == 1 and t.base in ("float", "double"):
        nan = r.random() < 0.5  # true or false for null as well: null is not NaN
        text = f"{name} IS {'' if nan else 'NOT '}NAN"
        return Condition(text, lambda row: ((v := reach(row, within, f)) is not None and v != v) == nan)
    if kind == 2 and t.base == "string":
        prefix = pick()[: r.choice([0, 1, 2])]
        if not set(prefix) & set("%_\\"):
            like = "'" + prefix.replace("'", "''") + "%'"
            if r.random() < 0.5:
                return test(f"LIKE {like}", lambda v: v.startswith(prefix))
            return test(f"NOT LIKE {like}", lambda v: not v.startswith(prefix))
    if kind in (3, 4):
        some = [pick() for _ in range(r.randint(1, 4))]
        text = ", ".join(literal(t, v) for v in some)
        if kind == 3:
            return test(f"IN ({text})", lambda v: v in some)
        return test(f"NOT IN ({text})", lambda v: v not in some)
    if kind == 5 and t.base != "boolean":
        low, high = pick(), pick()
        return test(
            f"BETWEEN {literal(t, low)} AND {literal(t, high)}",
            lambda v: v == v and not _less(v, low) and not _less(high, v),
        )
    return _comparison(r, test, t, pick())


def _comparison(r: random.Random, test: Callable[..., Condition], t: Primitive, x: Any) -> Condition:
    op = r.choice(["=", "<>"] if t.base == "boolean" else ["=", "<>", "<", "<=", ">", ">="])
    functions: dict[str, Callable[[Any], bool]] = {
        "=": lambda v: v == x,
        "<>": lambda v: v != x,
        "<": lambda v: _less(v, x),
        "<=": lambda v: v == x or _less(v, x),
        ">": lambda v: _less(x, v),
        ">=": lambda v: v == x or _less(x, v),
    }
    return test(f"{op} {literal(t, x)}", functions[op])
