# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Thrift's compact protocol, without a schema: enough to write Parquet's headers and footers, and to change them."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

BOOL_TRUE, BOOL_FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)


@dataclass
class Value:
    """A value and its type: int, float, bytes, bool, Fields, or a list of Values."""

    type: int
    value: Any
    element: int = 0  # of a list


Fields = dict[int, Value]


def i32(value: int) -> Value:
    """A 32-bit integer."""
    return Value(I32, value)


def i64(value: int) -> Value:
    """A 64-bit integer."""
    return Value(I64, value)


def binary(value: bytes | str) -> Value:
    """A string."""
    return Value(BINARY, value.encode() if isinstance(value, str) else value)


def boolean(value: bool) -> Value:
    """A bool."""
    return Value(BOOL_TRUE if value else BOOL_FALSE, value)


def record(fields: Fields) -> Value:
    """A struct."""
    return Value(STRUCT, fields)


def sequence(values: list[Value], element: int | None = None) -> Value:
    """A list."""
    return Value(LIST, values, element if element is not None else values[0].type if values else STRUCT)


def varint(n: int) -> bytes:
    """An unsigned varint."""
    out = bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


def _zigzag(n: int) -> bytes:
    return varint(n << 1 if n >= 0 else (-n << 1) - 1)


def write(fields: Fields) -> bytes:
    """A struct's bytes."""
    out, last = bytearray(), 0
    for number in sorted(fields):
        v = fields[number]
        delta = number - last
        out += bytes([delta << 4 | v.type]) if 0 < delta < 16 else bytes([v.type]) + _zigzag(number)
        if v.type not in (BOOL_TRUE, BOOL_FALSE):
            out += _write_value(v)
        last = number
    return bytes(out + b"\0")


def _write_value(v: Value) -> bytes:
    match v.type:
        case 1 | 2:  # within a list
            return b"\x01" if v.value else b"\x02"
        case 3:
            return struct.pack("b", v.value)
        case 4 | 5 | 6:
            return _zigzag(v.value)
        case 7:
            return struct.pack("<d", v.value)
        case 8:
            return varint(len(v.value)) + v.value
        case 9 | 10:
            n = len(v.value)
            head = bytes([n << 4 | v.element]) if n < 15 else bytes([0xF0 | v.element]) + varint(n)
            return head + b"".join(_write_value(e) for e in v.value)
        case 12:
            return write(v.value)
    raise TypeError(f"Thrift type {v.type}")


@dataclass
class Reader:
    """Reads structs."""

    data: bytes
    at: int = 0

    def _byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def _varint(self) -> int:
        out, shift = 0, 0
        while True:
            b = self._byte()
            out |= (b & 0x7F) << shift
            shift += 7
            if b < 0x80:
                return out

    def _signed(self) -> int:
        n = self._varint()
        return n >> 1 ^ -(n & 1)

    def struct(self) -> Fields:
        """The next struct."""
        out: Fields = {}
        last = 0
        while (head := self._byte()) != 0:
            last = last + (head >> 4) if head >> 4 else self._signed()
            kind = head & 15
            out[last] = Value(kind, kind == BOOL_TRUE) if kind in (1, 2) else self._value(kind)
        return out

    def _value(self, kind: int) -> Value:
        match kind:
            case 1 | 2:
                return Value(kind, self._byte() == 1)
            case 3:
                return Value(kind, struct.unpack("b", bytes([self._byte()]))[0])
            case 4 | 5 | 6:
                return Value(kind, self._signed())
            case 7:
                self.at += 8
                return Value(kind, struct.unpack("<d", self.data[self.at - 8 : self.at])[0])
            case 8:
                n = self._varint()
                self.at += n
                return Value(kind, self.data[self.at - n : self.at])
            case 9 | 10:
                head = self._byte()
                n = head >> 4 if head >> 4 != 15 else self._varint()
                return Value(kind, [self._value(head & 15) for _ in range(n)], head & 15)
            case 12:
                return Value(kind, self.struct())
        raise TypeError(f"Thrift type {kind}")


def footer(content: bytes) -> Fields:
    """The footer of a Parquet file."""
    (length,) = struct.unpack("<I", content[-8:-4])
    return Reader(content[-8 - length : -8]).struct()


def with_footer(content: bytes, new: Fields) -> bytes:
    """A Parquet file with another footer."""
    (length,) = struct.unpack("<I", content[-8:-4])
    raw = write(new)
    return content[: -8 - length] + raw + struct.pack("<I", len(raw)) + b"PAR1"
