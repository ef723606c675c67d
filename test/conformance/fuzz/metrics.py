# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a manifest says of a file's columns: counts and bounds, full, truncated, too wide, or absent."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .oracle import reach
from .schema import Primitive, leaves_of
from .table import File
from .transforms import bytes_of


@dataclass
class Columns:
    """The maps of a manifest entry, by field id."""

    values: dict[int, int] = field(default_factory=dict)
    nulls: dict[int, int] = field(default_factory=dict)
    nans: dict[int, int] = field(default_factory=dict)
    lower: dict[int, bytes] = field(default_factory=dict)
    upper: dict[int, bytes] = field(default_factory=dict)


def columns_of(file: File) -> Columns:
    """The metrics of a file as its Metrics want them."""
    out, wanted = Columns(), file.metrics
    if wanted.mode == "none":
        return out
    for within, f in leaves_of(file.fields):
        assert isinstance(f.type, Primitive)
        if (wanted.only is not None and f.id not in wanted.only) or f.type.base == "unknown":
            continue
        cells = [reach(row, within, f) for row in file.rows]
        known = [v for v in cells if v is not None]
        out.values[f.id], out.nulls[f.id] = len(cells), len(cells) - len(known)
        if f.type.base in ("float", "double"):
            out.nans[f.id] = sum(v != v for v in known)
            known = [v for v in known if v == v]
        if known and wanted.mode != "counts":
            lower, upper = bounds(f.type, known, wanted.length if wanted.mode == "truncate" else None, wanted.wide)
            if lower is not None:
                out.lower[f.id] = bytes_of(f.type, lower)
            if upper is not None:
                out.upper[f.id] = bytes_of(f.type, upper)
    return out


def bounds(t: Primitive, known: list[Any], length: int | None, wide: bool) -> tuple[Any, Any]:
    """Bounds of values; None is no bound."""
    lower, upper = min(known, key=lambda v: order(t, v)), max(known, key=lambda v: order(t, v))
    if t.base in ("string", "binary") and length is not None:
        lower, upper = lower[:length], _above(upper, length)
    if wide:
        lower, upper = _widened(t, lower, upper)
    return lower, upper


def order(t: Primitive, v: Any) -> Any:
    """The order of a type's values: -0.0 before 0.0, texts by their UTF-8."""
    if isinstance(v, float):
        return (v, str(v)[0] != "-")
    return v.encode() if isinstance(v, str) else v


def _above(upper: Any, length: int) -> Any:
    """A value of at most `length` characters or bytes that is no less; None if there is none."""
    if len(upper) <= length:
        return upper
    if isinstance(upper, bytes):
        cut = upper[:length].rstrip(b"\xff")
        return cut[:-1] + bytes([cut[-1] + 1]) if cut else None
    for at in range(length - 1, -1, -1):
        point = ord(upper[at]) + 1
        if point == 0xD800:
            point = 0xE000
        if point <= 0x10FFFF:
            return upper[:at] + chr(point)
    return None


def _widened(t: Primitive, lower: Any, upper: Any) -> tuple[Any, Any]:
    match t.base:
        case "int" | "date":
            return max(lower - 3, -(2**31)), min(upper + 3, 2**31 - 1)
        case "long" | "time" | "timestamp" | "timestamptz" | "timestamp_ns" | "timestamptz_ns":
            return max(lower - 10**9, -(2**63)), min(upper + 10**9, 2**63 - 1)
        case "float" | "double":
            return float("-inf"), float("inf")
        case "string":
            return "", (upper + "z") if upper is not None else None
        case "binary":
            return b"", (upper + b"z") if upper is not None else None
    return lower, upper
