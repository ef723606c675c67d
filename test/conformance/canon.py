# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Represents tables as multisets of rows, independent of the engine: the same rows have the same digests.

Engines differ in representation (large and small offsets, extension and storage types, chunking), but not in values. A
value is encoded as a tag and bytes, so that 1, 1.0, "1" and null differ.
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa

Rows = Counter[bytes]

_NAN = b"\x7f\xf8" + bytes(6)


def rows_of(table: pa.Table) -> Rows:
    """The number of occurrences of each row. Column names matter, their order does not."""
    return Counter(row_digests(table))


def row_digests(table: pa.Table) -> list[bytes]:
    """One digest per row, in the table's order."""
    names = sorted(table.column_names)
    columns = [_cells(table.column(name)) for name in names]
    head = "\0".join(names).encode()
    if not columns:
        return [head] * table.num_rows
    return [hashlib.blake2b(head + b"".join(cells), digest_size=12).digest() for cells in zip(*columns, strict=True)]


def difference(got: Rows, want: Rows) -> str:
    """Describes the difference of two multisets; "" if they are equal."""
    if got == want:
        return ""
    missing, extra = want - got, got - want
    return f"{got.total()} rows for {want.total()}: {missing.total()} missing, {extra.total()} that should not be there"


def _cells(column: pa.ChunkedArray) -> Iterable[bytes]:
    if pa.types.is_duration(column.type) or (pa.types.is_timestamp(column.type) and column.type.unit == "ns"):
        column = column.cast(pa.int64())  # Python's datetime has only microseconds
    for value in column.to_pylist():
        cell = encode(value)
        yield struct.pack(">I", len(cell)) + cell


def encode(value: Any) -> bytes:
    """Encodes a Python value as a tag and bytes."""
    match value:
        case None:
            return b"n"
        case bool():
            return b"b1" if value else b"b0"
        case int():
            return b"i%d" % value
        case float():
            return b"f" + (_NAN if value != value else struct.pack(">d", value))
        case str():
            return b"s" + value.encode()
        case bytes():
            return b"x" + value
        case UUID():
            return b"x" + value.bytes
        case Decimal():
            return b"d" + format(value, "f").encode()
        case datetime() if value.tzinfo is not None:
            return b"z" + value.astimezone(UTC).replace(tzinfo=None).isoformat().encode()
        case datetime() | date() | time():
            return b"t" + value.isoformat().encode()
        case dict():
            return b"{" + b"".join(_framed(encode(k) + b"=" + encode(value[k])) for k in sorted(value)) + b"}"
        case list() | tuple():
            return b"[" + b"".join(_framed(encode(item)) for item in value) + b"]"
    raise TypeError(f"no canonical form for a {type(value).__name__}: {value!r}")


def _framed(text: bytes) -> bytes:
    return struct.pack(">I", len(text)) + text
