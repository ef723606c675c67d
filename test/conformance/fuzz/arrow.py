# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Plain values to and from Arrow arrays."""

from __future__ import annotations

import struct
from typing import Any, Literal

import pyarrow as pa

from .schema import Field, List, Map, Primitive, Struct, Type
from .values import edges

_SIMPLE: dict[str, pa.DataType] = {
    "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(), "double": pa.float64(),
    "date": pa.date32(), "time": pa.time64("us"), "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"), "timestamp_ns": pa.timestamp("ns"),
    "timestamptz_ns": pa.timestamp("ns", "UTC"), "string": pa.string(), "binary": pa.binary(), "uuid": pa.uuid(),
    "unknown": pa.null(),
}  # fmt: skip

# The integers that have the same buffers.
_INTEGERS = {
    "date": pa.int32(), "time": pa.int64(), "timestamp": pa.int64(), "timestamptz": pa.int64(),
    "timestamp_ns": pa.int64(), "timestamptz_ns": pa.int64(),
}  # fmt: skip


# As a cache serves a type; as pyarrow writes it to a file with field ids; and without them.
Form = Literal["served", "file", "bare"]


def arrow_type(t: Type, form: Form = "served") -> pa.DataType:
    """The Arrow type of a type."""
    match t:
        case Struct(fields):
            return pa.struct([arrow_field(f, form) for f in fields])
        case List(element):
            return pa.list_(arrow_field(element, form))
        case Map(key, value):
            return pa.map_(arrow_field(key, form), arrow_field(value, form))
        case Primitive(base="decimal"):
            return pa.decimal128(*t.parameters)
        case Primitive(base="fixed"):
            return pa.binary(*t.parameters)
        case Primitive(base="uuid") if form != "served":
            return pa.binary(16)
    return _SIMPLE[t.base]


def arrow_field(f: Field, form: Form = "served") -> pa.Field:
    """The Arrow field of a field."""
    metadata = {"PARQUET:field_id": str(f.id)} if form == "file" else None
    return pa.field(f.name, arrow_type(f.type, form), nullable=not f.required, metadata=metadata)


def to_arrow(t: Type, values: list[Any], form: Form = "file") -> pa.Array:
    """An array of plain values for a file."""
    of = arrow_type(t, form)
    match t:
        case Struct(fields):
            kids = [to_arrow(f.type, [_within(f, v) for v in values], form) for f in fields]
            mask = pa.array([v is None for v in values], pa.bool_())
            return pa.StructArray.from_arrays(kids, fields=list(of), mask=mask)  # pyright: ignore[reportCallIssue]
        case List(element):
            flat = to_arrow(element.type, [item for v in values if v for item in v], form)
            return pa.ListArray.from_arrays(_offsets(values), flat, type=of, mask=_nulls(values))
        case Map(key, value):
            pairs = [pair for v in values if v for pair in v]
            keys = to_arrow(key.type, [k for k, _ in pairs], form)
            items = to_arrow(value.type, [v for _, v in pairs], form)
            return pa.MapArray.from_arrays(_offsets(values), keys, items, type=of, mask=_nulls(values))
    if t.base in _INTEGERS:
        return pa.array(values, _INTEGERS[t.base]).view(of)
    if t.base == "decimal":
        return _decimals(values, of)
    return pa.array(values, of)


def _within(f: Field, parent: Any) -> Any:
    """The value of a field of a struct; below a null struct anything, as pyarrow wants required fields without null."""
    if parent is not None:
        return parent.get(f.id)
    match f.type:
        case _ if not f.required:
            return None
        case Struct(fields):
            return {kid.id: _within(kid, None) for kid in fields}
        case List() | Map():
            return []
    return edges(f.type)[0]


def _offsets(values: list[Any]) -> pa.Array:
    offsets = [0]
    for v in values:
        offsets.append(offsets[-1] + len(v or ()))
    return pa.array(offsets, pa.int32())


def _nulls(values: list[Any]) -> pa.Array | None:
    return pa.array([v is None for v in values], pa.bool_()) if None in values else None


def _decimals(values: list[Any], of: pa.DataType) -> pa.Array:
    raw = b"".join((v or 0).to_bytes(16, "little", signed=True) for v in values)
    valid = pa.array([v is not None for v in values], pa.bool_()).buffers()[1]
    return pa.Array.from_buffers(of, len(values), [valid, pa.py_buffer(raw)])


def from_arrow(t: Type, array: pa.Array) -> list[Any]:
    """The plain values of an array of the type that a cache serves."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    valid = array.is_valid().to_pylist()
    match t:
        case Struct(fields):
            kids = [from_arrow(f.type, array.field(i)) for i, f in enumerate(fields)]
            ids = [f.id for f in fields]
            return [
                dict(zip(ids, row, strict=True)) if ok else None for ok, row in zip(valid, _rows(kids), strict=True)
            ]
        case List(element):
            return _cut(array, valid, from_arrow(element.type, array.values))
        case Map(key, value):
            keys, items = from_arrow(key.type, array.keys), from_arrow(value.type, array.items)
            return _cut(array, valid, list(zip(keys, items, strict=True)))
    if t.base in _INTEGERS:
        return array.view(_INTEGERS[t.base]).to_pylist()
    if t.base == "decimal":
        raw = array.buffers()[1].to_pybytes() if len(array) else b""
        at = [(array.offset + i) * 16 for i in range(len(array))]
        cells = [int.from_bytes(raw[a : a + 16], "little", signed=True) for a in at]
        return [v if ok else None for ok, v in zip(valid, cells, strict=True)]
    return array.to_pylist()


def _rows(columns: list[list[Any]]) -> list[tuple[Any, ...]]:
    return list(zip(*columns, strict=True))


def _cut(array: Any, valid: list[bool], flat: list[Any]) -> list[Any]:
    offsets = array.offsets.to_pylist()
    return [flat[offsets[i] : offsets[i + 1]] if ok else None for i, ok in enumerate(valid)]


def same(t: Type, a: Any, b: Any) -> bool:
    """Whether two plain values are equal: floats bit by bit, except that every NaN equals every other."""
    if a is None or b is None:
        return a is b
    match t:
        case Struct(fields):
            return all(same(f.type, a.get(f.id), b.get(f.id)) for f in fields)
        case List(element):
            return len(a) == len(b) and all(same(element.type, x, y) for x, y in zip(a, b, strict=True))
        case Map(key, value):
            pairs = zip(a, b, strict=False)
            return len(a) == len(b) and all(
                same(key.type, x[0], y[0]) and same(value.type, x[1], y[1]) for x, y in pairs
            )
    if isinstance(a, float):
        return (a != a and b != b) or struct.pack(">d", a) == struct.pack(">d", b)
    return type(a) is type(b) and a == b
