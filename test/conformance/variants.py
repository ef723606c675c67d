# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Variants by the Parquet format's VariantEncoding.md and VariantShredding.md: encoded, shredded and decoded."""

from __future__ import annotations

import datetime as dt
import itertools
import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa

#: The type of a shredded value: a type of Arrow, [type of elements] or {field: type}.
Shape = Any

_EPOCH = dt.date(1970, 1, 1)


def keys_of(value: Any) -> set[str]:
    """All names of fields in a value."""
    if isinstance(value, dict):
        return set(value).union(*map(keys_of, value.values()))
    return set().union(*map(keys_of, value)) if isinstance(value, list) else set()


def metadata_of(value: Any) -> bytes:
    """The metadata: a sorted dictionary of the names."""
    names = [k.encode() for k in sorted(keys_of(value))]
    ends = [sum(map(len, names[:i])) for i in range(len(names) + 1)]
    return bytes([0x11 | 1 << 6]) + b"".join(n.to_bytes(2, "little") for n in (len(names), *ends)) + b"".join(names)


def encode(value: Any, names: list[str]) -> bytes:
    """The value; names is the dictionary."""
    match value:
        case None:
            return b"\x00"
        case bool():
            return b"\x04" if value else b"\x08"
        case int():
            size = next(s for s in (1, 2, 4, 8) if -(1 << 8 * s - 1) <= value < 1 << 8 * s - 1)
            return bytes([{1: 3, 2: 4, 4: 5, 8: 6}[size] << 2]) + value.to_bytes(size, "little", signed=True)
        case float():
            return b"\x1c" + struct.pack("<d", value)
        case Decimal():
            exponent = value.as_tuple().exponent
            assert isinstance(exponent, int)
            return bytes([9 << 2, -exponent]) + int(value.scaleb(-exponent)).to_bytes(8, "little", signed=True)
        case dt.date():
            return bytes([11 << 2]) + (value - _EPOCH).days.to_bytes(4, "little", signed=True)
        case bytes():
            return bytes([15 << 2]) + len(value).to_bytes(4, "little") + value
        case str():
            text = value.encode()
            return (
                bytes([len(text) << 2 | 1]) + text if len(text) < 64 else b"\x40" + struct.pack("<I", len(text)) + text
            )
        case list():
            parts = [encode(v, names) for v in value]
            return bytes([0b111 << 2 | 3]) + len(parts).to_bytes(4, "little") + _ends(parts) + b"".join(parts)
        case dict():
            parts = [encode(value[k], names) for k in sorted(value)]
            ids = b"".join(names.index(k).to_bytes(1, "little") for k in sorted(value))
            return bytes([0b10011 << 2 | 2]) + len(parts).to_bytes(4, "little") + ids + _ends(parts) + b"".join(parts)
    raise TypeError(type(value))


def _ends(parts: list[bytes]) -> bytes:
    return b"".join(sum(map(len, parts[:i])).to_bytes(4, "little") for i in range(len(parts) + 1))


def decode(metadata: bytes, value: bytes) -> Any:
    """The value of the two binaries."""
    size = (metadata[0] >> 6) + 1
    count = int.from_bytes(metadata[1 : 1 + size], "little")
    ends = _numbers(metadata, 1 + size, size, count + 1)
    text = metadata[1 + size * (count + 2) :]
    return _decode([text[a:b].decode() for a, b in itertools.pairwise(ends)], value)


def _numbers(data: bytes, at: int, size: int, count: int) -> list[int]:
    return [int.from_bytes(data[at + i * size : at + (i + 1) * size], "little") for i in range(count)]


def _decode(names: list[str], value: bytes) -> Any:
    basic, header, rest = value[0] & 3, value[0] >> 2, value[1:]
    if basic == 1:
        return rest[:header].decode()
    if basic == 0:
        return _primitive(header, rest)
    large = header >> (4 if basic == 2 else 2) & 1
    count, at = int.from_bytes(rest[: 4 if large else 1], "little"), 4 if large else 1
    size, ids = (header & 3) + 1, []
    if basic == 2:
        id_size = (header >> 2 & 3) + 1
        ids, at = _numbers(rest, at, id_size, count), at + id_size * count
    starts = _numbers(rest, at, size, count + 1)
    items = [_decode(names, rest[at + size * (count + 1) + s :]) for s in starts[:count]]
    if basic == 3:
        return items
    keys = [names[i] for i in ids]
    assert keys == sorted(set(keys)), "fields of an object are sorted by name"
    return dict(zip(keys, items, strict=True))


def _primitive(kind: int, data: bytes) -> Any:
    if kind < 3:
        return (None, True, False)[kind]
    if kind < 7:
        return int.from_bytes(data[: 1 << kind - 3], "little", signed=True)
    if kind in (8, 9, 10):
        return Decimal(int.from_bytes(data[1 : 1 + (4 << kind - 8)], "little", signed=True)).scaleb(-data[0])
    if kind == 11:
        return _EPOCH + dt.timedelta(int.from_bytes(data[:4], "little", signed=True))
    if kind in (15, 16):
        content = data[4 : 4 + int.from_bytes(data[:4], "little")]
        return content if kind == 15 else content.decode()
    assert kind == 7, f"primitive type {kind}"
    return struct.unpack("<d", data[:8])[0]


_CLASSES = {
    pa.int64(): int, pa.float64(): float, pa.string(): str, pa.bool_(): bool, pa.date32(): dt.date, pa.binary(): bytes,
}  # fmt: skip


def shred(value: Any, shape: Shape, names: list[str]) -> dict[str, Any]:
    """The columns value and typed_value of a value; both are None for a field that an object lacks."""
    if isinstance(shape, dict) and isinstance(value, dict):
        rest = {k: v for k, v in value.items() if k not in shape}
        missing = {"value": None, "typed_value": None}
        typed = {k: shred(value[k], of, names) if k in value else missing for k, of in shape.items()}
        return {"value": encode(rest, names) if rest else None, "typed_value": typed}
    if isinstance(shape, list) and isinstance(value, list):
        return {"value": None, "typed_value": [shred(v, shape[0], names) for v in value]}
    if isinstance(shape, pa.DataType) and type(value) is _CLASSES.get(shape):
        return {"value": None, "typed_value": value}
    return {"value": encode(value, names), "typed_value": None}


def shredded_fields(shape: Shape) -> list[pa.Field]:
    """The fields value and typed_value."""
    if isinstance(shape, dict):
        typed = pa.struct([pa.field(k, pa.struct(shredded_fields(of)), nullable=False) for k, of in shape.items()])
    elif isinstance(shape, list):
        typed = pa.list_(pa.field("element", pa.struct(shredded_fields(shape[0])), nullable=False))
    else:
        typed = shape
    return [pa.field("value", pa.binary()), pa.field("typed_value", typed)]


MISSING = object()


def column_of(values: list[Any], shape: Shape = None) -> pa.Array:
    """A column of variants; MISSING is a null of the column, None a variant that is null."""
    metadata = pa.field("metadata", pa.binary(), nullable=False)
    if shape is None:
        kind = pa.struct([metadata, pa.field("value", pa.binary(), nullable=False)])
    else:
        kind = pa.struct([metadata, *shredded_fields(shape)])
    rows = []
    for v in values:
        names = sorted(keys_of(v))
        parts = {"value": encode(v, names)} if shape is None and v is not MISSING else {}
        if shape is not None and v is not MISSING:
            parts = shred(v, shape, names)
        rows.append(None if v is MISSING else {"metadata": metadata_of(v), **parts})
    return pa.array(rows, kind)
