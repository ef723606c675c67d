# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Flight.proto's FlightData, received where it stays, and Ticket."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import pyarrow as pa

from kubeflow_datacache.h2.call import Call
from kubeflow_datacache.h2.errors import ProtocolError
from kubeflow_datacache.heap import HEAP

_HEADER, _METADATA, _BODY = 2, 3, 1000  # field numbers of FlightData; 1 is the descriptor, which no DoGet needs
_TICKET: Final = 0x0A  # field 1 of Ticket, with a length
_VARINT, _FIXED64, _SIZED, _FIXED32 = 0, 1, 2, 5  # protobuf's wire types
_ALIGNED: Final = 64  # what Arrow recommends for buffers; bodies keep it
_MARK: Final = b"\xff\xff\xff\xff"  # begins an encapsulated message (Arrow's columnar format, "Encapsulated message")


class FlightData(NamedTuple):
    """One message of a stream. ipc: an encapsulated IPC message, None if there was none. said: its app_metadata."""

    ipc: pa.Buffer | None
    said: pa.Buffer | None


def ticket(opaque: bytes) -> bytes:
    """A Ticket, serialized."""
    return bytes([_TICKET]) + _varint(len(opaque)) + opaque


def receive(call: Call, size: int) -> FlightData:
    """The next message, of so many bytes. Its body lies in memory of its own, 64-byte aligned, and is not copied."""
    header, said, early = b"", None, b""
    ipc: pa.Buffer | None = None
    fields = _Fields(call, size)
    for number, length in fields:
        if number == _HEADER:
            header = fields.read(length)
        elif number == _METADATA:
            said = pa.py_buffer(fields.read(length))
        elif number == _BODY and header:
            ipc, body = _lay(header, length)
            fields.read_into(body)
        elif number == _BODY:  # no writer puts it first, but it might
            early = fields.read(length)
        else:
            fields.read(length)
    if header and ipc is None:
        ipc, body = _lay(header, len(early))
        body[:] = early
    return FlightData(ipc, said)


def _lay(header: bytes, size: int) -> tuple[pa.Buffer, memoryview]:
    """An encapsulated message around a header, and the place in it where its body of so many bytes is to be put."""
    start = _MARK + (_padded(len(_MARK) + 4 + len(header)) - 8).to_bytes(4, "little") + header
    front = _padded(len(start))
    whole, view = HEAP.allocate(front + size)
    view[:front] = start.ljust(front, b"\0")
    return whole, view[front:]


def _padded(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


class _Fields:
    """Iterates over the fields of a protobuf message that have a length: (number, length). Each must be read."""

    def __init__(self, call: Call, size: int) -> None:
        self._call, self._left = call, size

    def __iter__(self) -> Iterator[tuple[int, int]]:
        while self._left:
            tag = self._integer()
            number, kind = tag >> 3, tag & 7
            if kind == _SIZED:
                length = self._integer()
                if length > self._left:
                    raise ProtocolError(f"protobuf: a field of {length} bytes in a message that has {self._left} left")
                yield number, length
            elif kind == _VARINT:
                self._integer()
            elif kind in (_FIXED32, _FIXED64):
                self.read(4 if kind == _FIXED32 else 8)
            else:
                raise ProtocolError(f"protobuf: field {number} has wire type {kind}")

    def read(self, count: int) -> bytes:
        self._take(count)
        return self._call.read(count)

    def read_into(self, out: memoryview) -> None:
        self._take(len(out))
        self._call.read_into(out)

    def _integer(self) -> int:
        value = shift = 0
        while True:
            byte = self.read(1)[0]
            value |= (byte & 0x7F) << shift
            if not byte & 0x80:
                return value
            shift += 7
            if shift > 63:
                raise ProtocolError("protobuf: an integer of more than 64 bits")

    def _take(self, count: int) -> None:
        if count > self._left:
            raise ProtocolError("protobuf: a message ends in the middle of a field")
        self._left -= count


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
