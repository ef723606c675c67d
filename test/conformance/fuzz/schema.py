# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Iceberg's types and schemas, and their plain values.

A plain value is None, or: bool; int for int, long, date (days), time, timestamp and timestamptz (microseconds),
timestamp_ns and timestamptz_ns (nanoseconds), decimal (unscaled); float; str; bytes for binary, fixed, uuid; a dict by
field id for a struct; a list; a list of pairs for a map.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Primitive:
    """A primitive type by its name in the specification, such as "decimal(9, 2)" or "fixed[5]"."""

    name: str

    @property
    def base(self) -> str:
        """The name without parameters."""
        return re.split(r"[(\[]", self.name)[0]

    @property
    def parameters(self) -> tuple[int, ...]:
        """Precision and scale of a decimal, the length of a fixed."""
        return tuple(int(n) for n in re.findall(r"\d+", self.name[len(self.base) :]))


@dataclass(frozen=True)
class Struct:
    """A struct of fields."""

    fields: tuple[Field, ...]

    def field(self, name: str) -> Field:
        """The field of a name."""
        return next(f for f in self.fields if f.name == name)


@dataclass(frozen=True)
class List:
    """A list; the field's name is "element"."""

    element: Field


@dataclass(frozen=True)
class Map:
    """A map; the fields' names are "key" and "value"."""

    key: Field
    value: Field


Type = Primitive | Struct | List | Map


@dataclass(frozen=True)
class Field:
    """A column or a nested field."""

    id: int
    name: str
    type: Type
    required: bool = False
    default: Any = None  # initial default, a plain value

    def json(self) -> dict[str, Any]:
        """The field in a table's metadata file."""
        out = {"id": self.id, "name": self.name, "required": self.required, "type": type_json(self.type)}
        if self.default is not None and isinstance(self.type, Primitive):
            out["initial-default"] = out["write-default"] = value_json(self.type, self.default)
        return out


@dataclass(frozen=True)
class Schema:
    """A schema of a table."""

    id: int
    fields: tuple[Field, ...]

    def json(self) -> dict[str, Any]:
        """The schema in a table's metadata file."""
        return {"type": "struct", "schema-id": self.id, "fields": [f.json() for f in self.fields]}

    def leaves(self) -> Iterator[tuple[tuple[Field, ...], Field]]:
        """The primitive fields outside lists and maps, each with the structs that contain it."""
        yield from leaves_of(self.fields)


#: Row lineage of format v3 (specification, reserved field ids).
ROW_ID = Field(2147483540, "_row_id", Primitive("long"))
LAST_UPDATED = Field(2147483539, "_last_updated_sequence_number", Primitive("long"))


def leaves_of(fields: tuple[Field, ...], within: tuple[Field, ...] = ()) -> Iterator[tuple[tuple[Field, ...], Field]]:
    """The primitive fields outside lists and maps, each with the structs that contain it."""
    for f in fields:
        if isinstance(f.type, Struct):
            yield from leaves_of(f.type.fields, (*within, f))
        elif isinstance(f.type, Primitive):
            yield within, f


def every_field(fields: tuple[Field, ...]) -> Iterator[Field]:
    """All fields, nested ones too."""
    for f in fields:
        yield f
        yield from every_field(children(f.type))


def children(t: Type) -> tuple[Field, ...]:
    """The fields of a nested type."""
    match t:
        case Struct(fields):
            return fields
        case List(element):
            return (element,)
        case Map(key, value):
            return (key, value)
    return ()


def with_children(t: Type, kids: tuple[Field, ...]) -> Type:
    """A nested type with other fields."""
    match t:
        case Struct():
            return Struct(kids)
        case List():
            return List(kids[0])
        case Map():
            return Map(*kids)
    return t


def change(fields: tuple[Field, ...], new: Field) -> tuple[Field, ...]:
    """The fields with the one that has new's id replaced, wherever it is."""
    return tuple(
        new if f.id == new.id else replace(f, type=with_children(f.type, change(children(f.type), new))) for f in fields
    )


def type_json(t: Type) -> Any:
    """A type in JSON (specification, appendix C)."""
    match t:
        case Primitive(name):
            return name
        case Struct(fields):
            return {"type": "struct", "fields": [f.json() for f in fields]}
        case List(e):
            return {"type": "list", "element-id": e.id, "element": type_json(e.type), "element-required": e.required}
        case Map(k, v):
            return {
                "type": "map", "key-id": k.id, "key": type_json(k.type), "value-id": v.id, "value": type_json(v.type),
                "value-required": v.required,
            }  # fmt: skip


def value_json(t: Primitive, value: Any) -> Any:
    """A value in JSON (specification, JSON single-value serialization)."""
    match t.base:
        case "binary" | "fixed":
            return value.hex()
        case "uuid":
            return uuid_text(value)
        case "decimal":
            return decimal_text(value, t.parameters[1])
        case "date":
            return date_text(value)
        case "time":
            return time_text(value)
        case "timestamp" | "timestamp_ns":
            return timestamp_text(value, t.base.endswith("_ns"), "T")
        case "timestamptz" | "timestamptz_ns":
            return timestamp_text(value, t.base.endswith("_ns"), "T") + "+00:00"
        case "float" | "double" if value != value:
            return "NaN"
        case "float" | "double" if value in (float("inf"), float("-inf")):
            return "Infinity" if value > 0 else "-Infinity"
    return value


def uuid_text(value: bytes) -> str:
    """A UUID's text."""
    h = value.hex()
    return "-".join((h[:8], h[8:12], h[12:16], h[16:20], h[20:]))


def decimal_text(unscaled: int, scale: int) -> str:
    """A decimal's text."""
    digits = str(abs(unscaled)).rjust(scale + 1, "0")
    text = f"{digits[:-scale]}.{digits[-scale:]}" if scale else digits
    return "-" + text if unscaled < 0 else text


def date_text(days: int) -> str:
    """The date of a day since 1970, by Howard Hinnant's civil_from_days; any year from 1 to 9999."""
    z = days + 719468
    era, doe = divmod(z, 146097)
    yoe = (doe - doe // 1460 + doe // 36524 - doe // 146096) // 365
    doy = doe - (365 * yoe + yoe // 4 - yoe // 100)
    month = (5 * doy + 2) // 153
    day = doy - (153 * month + 2) // 5 + 1
    month = month + 3 if month < 10 else month - 9
    return f"{yoe + era * 400 + (month <= 2):04}-{month:02}-{day:02}"


def time_text(micros: int) -> str:
    """The text of a time of day."""
    seconds, micros = divmod(micros, 10**6)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{micros:06}"


def timestamp_text(value: int, nanos: bool, between: str = " ") -> str:
    """The text of a timestamp, in UTC and without the zone."""
    unit, digits = (10**9, 9) if nanos else (10**6, 6)
    seconds, rest = divmod(value, unit)
    days, seconds = divmod(seconds, 86400)
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{date_text(days)}{between}{clock}.{rest:0{digits}}"
