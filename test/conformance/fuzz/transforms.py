# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Partition transforms and the binary form of single values, by the specification's text."""

from __future__ import annotations

import struct
from typing import Any

from .schema import Primitive, date_text

_MICROS_OF_DAY = 86_400_000_000


def bytes_of(t: Primitive, value: Any) -> bytes:
    """A value in the binary form of bounds (specification, appendix D)."""
    match t.base:
        case "boolean":
            return b"\x01" if value else b"\x00"
        case "int" | "date":
            return struct.pack("<i", value)
        case "long" | "time" | "timestamp" | "timestamptz" | "timestamp_ns" | "timestamptz_ns":
            return struct.pack("<q", value)
        case "float":
            return struct.pack("<f", value)
        case "double":
            return struct.pack("<d", value)
        case "string":
            return value.encode()
        case "decimal":
            return minimal(value)
    return value


def minimal(unscaled: int) -> bytes:
    """The shortest big-endian two's complement of an integer."""
    return unscaled.to_bytes((unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1, "big", signed=True)


def murmur3(data: bytes, seed: int = 0) -> int:
    """The 32-bit Murmur3 hash, x86 variant, as a signed number."""
    mask = 0xFFFFFFFF

    def mixed(k: int) -> int:
        k = k * 0xCC9E2D51 & mask
        return ((k << 15 | k >> 17) & mask) * 0x1B873593 & mask

    h, whole = seed, len(data) // 4 * 4
    for i in range(0, whole, 4):
        h ^= mixed(int.from_bytes(data[i : i + 4], "little"))
        h = ((h << 13 | h >> 19) & mask) * 5 + 0xE6546B64 & mask
    if data[whole:]:
        h ^= mixed(int.from_bytes(data[whole:], "little"))
    h ^= len(data)
    h = (h ^ h >> 16) * 0x85EBCA6B & mask
    h = (h ^ h >> 13) * 0xC2B2AE35 & mask
    h ^= h >> 16
    return h - (1 << 32) if h >> 31 else h


def hashed(t: Primitive, value: Any) -> int:
    """The hash of a value (specification, appendix B)."""
    match t.base:
        case "int" | "long" | "date" | "time" | "timestamp" | "timestamptz":
            return murmur3(struct.pack("<q", value))
        case "timestamp_ns" | "timestamptz_ns":
            return murmur3(struct.pack("<q", value // 1000))
        case "decimal":
            return murmur3(minimal(value))
        case "string":
            return murmur3(value.encode())
    return murmur3(value)


def apply(transform: str, t: Primitive, value: Any, old: bool = False) -> Any:
    """The partition value of a value; old: as Iceberg wrote it before 0.10, which rounded times before 1970 up."""
    name, _, parameter = transform.rstrip("]").partition("[")
    if value is None or name == "void":
        return None
    match name:
        case "identity":
            return value
        case "bucket":
            return (hashed(t, value) & 0x7FFFFFFF) % int(parameter)
        case "truncate":
            return _truncate(t, value, int(parameter))
    if old and value < 0:
        return apply(transform, t, value - 1) + 1  # only the first moment of an hour, day, month or year is its own
    if t.base == "date":
        days, hours = value, value * 24
    else:
        per_day = _MICROS_OF_DAY * (1000 if t.base.endswith("_ns") else 1)
        days, hours = value // per_day, value // (per_day // 24)
    year, month = (int(part) for part in date_text(days).split("-")[:2])
    return {"year": year - 1970, "month": (year - 1970) * 12 + month - 1, "day": days, "hour": hours}[name]


def _truncate(t: Primitive, value: Any, width: int) -> Any:
    if t.base in ("int", "long", "decimal"):
        return value - value % width
    return value[:width]


def result(transform: str, source: Primitive) -> Primitive:
    """The type of a transform's results."""
    name = transform.partition("[")[0]
    if name in ("identity", "truncate", "void"):
        return source
    return Primitive("date" if name == "day" else "int")


def transforms_of(t: Primitive) -> list[str]:
    """The transforms that a type has."""
    base = t.base
    out = ["identity", "void"]
    if base in ("boolean", "float", "double"):
        return out
    out += ["bucket[1]", "bucket[3]", "bucket[16]"]
    if base in ("int", "long", "decimal"):
        out += ["truncate[1]", "truncate[10]", "truncate[1000]"]
    if base in ("string", "binary"):
        out += ["truncate[1]", "truncate[3]"]
    if base.startswith("timestamp"):
        out += ["year", "month", "day", "hour"]
    if base == "date":
        out += ["year", "month", "day"]
    return out
