# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Writes Avro object container files (Avro specification 1.12), in as many blocks as wanted."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Iterable
from typing import Any

import zstandard

SYNC = b"datacache fuzz !"  # the marker that ends each block

Encode = Callable[[Any], bytes]


def write(schema: Any, records: list[Any], metadata: dict[str, str], codec: str = "null", block: int = 1000) -> bytes:
    """A file of records, `block` of them in a block."""
    entries = {"avro.schema": json.dumps(schema), "avro.codec": codec, **metadata}
    encode = encoder(schema)
    head = long(len(entries)) + b"".join(text(k) + text(v) for k, v in entries.items()) + long(0)
    out = [b"Obj\x01", head, SYNC]
    for first in range(0, len(records), block):
        part = records[first : first + block]
        raw = compress(b"".join(encode(r) for r in part), codec)
        out += [long(len(part)), long(len(raw)), raw, SYNC]
    return b"".join(out)


def compress(raw: bytes, codec: str) -> bytes:
    """A block's bytes in a codec."""
    match codec:
        case "deflate":
            return zlib.compress(raw, wbits=-15)
        case "zstandard":
            return zstandard.compress(raw)
    return raw


def long(value: int) -> bytes:
    """A zigzag varint."""
    n = (value << 1) ^ (value >> 63)
    out = bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


def text(value: str | bytes) -> bytes:
    """A string or bytes with their length."""
    raw = value.encode() if isinstance(value, str) else value
    return long(len(raw)) + raw


_SIMPLE: dict[str, Encode] = {
    "null": lambda _: b"",
    "boolean": lambda v: b"\x01" if v else b"\x00",
    "int": long,
    "long": long,
    "float": lambda v: struct.pack("<f", v),
    "double": lambda v: struct.pack("<d", v),
    "string": text,
    "bytes": text,
}


def encoder(schema: Any, names: dict[str, Encode] | None = None) -> Encode:
    """The function that encodes values of a schema."""
    names = {} if names is None else names
    if isinstance(schema, str):
        return _SIMPLE[schema] if schema in _SIMPLE else names[schema]
    if isinstance(schema, list):
        return _optional(schema, names)
    match schema["type"]:
        case "record":
            fields = [(f["name"], encoder(f["type"], names)) for f in schema["fields"]]
            return lambda v: b"".join([encode(v[name]) for name, encode in fields])
        case "array":
            return _array(encoder(schema["items"], names))
        case "map":
            value = encoder(schema["values"], names)
            return _array(lambda pair: text(pair[0]) + value(pair[1]), items=lambda v: v.items())
        case "fixed":
            names[schema["name"]] = lambda v: v
            return names[schema["name"]]
        case inner:
            return encoder(inner, names)


def _optional(union: list[Any], names: dict[str, Encode]) -> Encode:
    """A union of null and one other type."""
    null = union.index("null")
    encode = encoder(union[1 - null], names)
    return lambda v: long(null) if v is None else long(1 - null) + encode(v)


def _array(encode: Encode, items: Callable[[Any], Iterable[Any]] = iter) -> Encode:
    def blocks(values: Any) -> bytes:
        raw = [encode(v) for v in items(values)]
        return (long(len(raw)) + b"".join(raw) if raw else b"") + long(0)

    return blocks
