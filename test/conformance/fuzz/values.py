# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Random types and values, with the values at which readers go wrong."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any

from .schema import Field, List, Map, Primitive, Struct, Type

_DAY = 86_400_000_000
FIRST_DAY, LAST_DAY = -719_162, 2_932_896  # years 1 to 9999

SIMPLE = (
    "boolean", "int", "long", "float", "double", "decimal(9, 2)", "decimal(18, 6)", "decimal(38, 10)", "date", "time",
    "timestamp", "timestamptz", "string", "binary", "fixed[5]", "uuid",
)  # fmt: skip

SINCE_3 = ("timestamp_ns", "timestamptz_ns")

_TEXTS = [
    "",
    "a",
    "A",
    "aa",
    "ab",
    "b",
    "snow",
    "Grüße",
    "日本語",
    "🙂🙂",
    "null",
    "x'y\"z",
    "\u0000nul",
    "zz" * 20,
    "\uffff",
    "\U0010ffff",
]
_BYTES = [b"", b"\x00", b"\x00\x01", b"\x7f", b"\x80", b"\xff", b"\xff" * 20, b"ab"]
_SECONDS = [-1, 0, 1, -(10**6), 10**6, -3_600_000_000, 3_600_000_000, -_DAY, _DAY, -_DAY - 1, -_DAY + 1]
_DAYS = [-1, 0, 1, -31, 31, -365, -366, 365, 11_016, 19_782]
_FLOATS = [0.0, -0.0, 1.5, -1.5, 0.1, 2.0**-149, float("inf"), float("-inf"), float("nan"), 3.0e38]


def single(value: float) -> float:
    """The nearest 32-bit float."""
    return struct.unpack("<f", struct.pack("<f", value))[0]


def edges(t: Primitive) -> list[Any]:
    """Values of a type that deserve to come often."""
    match t.base:
        case "boolean":
            return [True, False]
        case "int":
            return [0, 1, -1, 7, -7, 10, -10, 2**31 - 1, -(2**31)]
        case "long":
            return [0, 1, -1, 7, -7, 10, -10, 2**31, 2**53 + 1, 2**63 - 1, -(2**63)]
        case "float":
            return [single(v) for v in _FLOATS]
        case "double":
            return [*_FLOATS, 1e308, 5e-324]
        case "decimal":
            top = 10 ** t.parameters[0] - 1
            return [0, 1, -1, 100, -100, 127, 128, -128, -129, 255, 256, top, -top]
        case "date":
            return [*_DAYS, FIRST_DAY, LAST_DAY]
        case "time":
            return [0, 1, _DAY - 1, _DAY // 2]
        case "timestamp" | "timestamptz":
            return [*_SECONDS, *(d * _DAY for d in _DAYS), FIRST_DAY * _DAY, LAST_DAY * _DAY]
        case "timestamp_ns" | "timestamptz_ns":
            return [s * 1000 for s in _SECONDS] + [-1, 1, -(2**62), 2**62]
        case "string":
            return list(_TEXTS)
        case "binary":
            return list(_BYTES)
    length = 16 if t.base == "uuid" else t.parameters[0]
    return [bytes(length), b"\xff" * length, b"\x80".ljust(length, b"\0"), b"\x7f".ljust(length, b"\0")]


def usual(r: random.Random, t: Primitive) -> Any:
    """A value of a type."""
    match t.base:
        case "boolean":
            return r.random() < 0.5
        case "int":
            return r.choice([r.randint(-20, 20), r.randint(-(2**31), 2**31 - 1)])
        case "long":
            return r.choice([r.randint(-20, 20), r.randint(-(2**63), 2**63 - 1)])
        case "float":
            return single(r.gauss(0, 100))
        case "double":
            return r.gauss(0, 100)
        case "decimal":
            top = 10 ** t.parameters[0] - 1
            return r.choice([r.randint(-1000, 1000), r.randint(-top, top)])
        case "date":
            return r.choice([r.randint(-800, 800), r.randint(FIRST_DAY, LAST_DAY)])
        case "time":
            return r.randrange(_DAY)
        case "timestamp" | "timestamptz":
            return r.choice([r.randint(-800, 800) * 3_600_000_000, r.randint(FIRST_DAY * _DAY, LAST_DAY * _DAY)])
        case "timestamp_ns" | "timestamptz_ns":
            return r.choice([r.randint(-800, 800) * 3_600_000_000_000, r.randint(-(2**62), 2**62)])
        case "string":
            return r.choice(_TEXTS) + str(r.randrange(9))
        case "binary":
            return r.randbytes(r.randrange(20))
    return r.randbytes(16 if t.base == "uuid" else t.parameters[0])


def primitive(r: random.Random, t: Primitive) -> Any:
    """A value of a type, often one at which readers go wrong."""
    return r.choice(edges(t)) if r.random() < 0.6 else usual(r, t)


def value(r: random.Random, f: Field, nulls: float = 0.15) -> Any:
    """A value of a field, null with probability `nulls` unless it is required."""
    if f.type == Primitive("unknown") or (not f.required and r.random() < nulls):
        return None
    match f.type:
        case Struct(fields):
            return {kid.id: value(r, kid) for kid in fields}
        case List(element):
            return [value(r, element) for _ in range(r.choice([0, 0, 1, 2, 5]))]
        case Map(key, item):
            keys = {repr(k): k for k in (primitive(r, _simple(key.type)) for _ in range(r.choice([0, 1, 3])))}
            return [(k, value(r, item)) for k in keys.values()]
    return primitive(r, f.type)


def _simple(t: Type) -> Primitive:
    assert isinstance(t, Primitive)
    return t


def random_type(r: random.Random, ids: Callable[[], int], version: int, depth: int = 0) -> Type:
    """A type of a format version; most are primitive."""
    if depth > 2 or r.random() < 0.75:
        return Primitive(r.choice([*SIMPLE, *(SINCE_3 if version > 2 else ())]))
    match r.randrange(4):
        case 0 | 1:
            names = r.sample(["x", "y", "Z z", "name", "a"], r.randint(1, 3))
            return Struct(tuple(random_field(r, n, ids, version, depth + 1) for n in names))
        case 2:
            return List(random_field(r, "element", ids, version, depth + 1))
    key = Field(ids(), "key", Primitive(r.choice(["string", "int", "long", "date", "uuid"])), required=True)
    return Map(key, random_field(r, "value", ids, version, depth + 1))


def random_field(r: random.Random, name: str, ids: Callable[[], int], version: int, depth: int = 0) -> Field:
    """A field of a random type."""
    return Field(ids(), name, random_type(r, ids, version, depth), required=r.random() < 0.1)
