# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Flight.proto's FlightData, received where it stays, and Ticket."""

from __future__ import annotations

from typing import Final, NamedTuple

import pyarrow as pa

from kubeflow_datacache.h2.call import Call
from kubeflow_datacache.h2.errors import ProtocolError
from kubeflow_datacache.rows.heap import HEAP

_DESCRIPTOR, _HEADER, _METADATA, _BODY = 1, 2, 3, 1000  # field numbers of FlightData
_TICKET: Final = 1  # of Ticket
_RESULT_BODY: Final = 1  # of Result
_OTHER: Final = 0  # for fields that have no length before them; no field has this number
_VARINT, _SIZED = 0, 2  # protobuf's wire types
_FIXED: Final = {1: 8, 5: 4}  # bytes by wire type
_ALIGNED: Final = 64  # what Arrow recommends for buffers; bodies keep it
_TAG_AND_LENGTH: Final = 20  # bytes that two integers take at most
_FRONT: Final = 1024  # bytes: more than a batch's header and metadata, unless it has some thirty columns
_MARK: Final = b"\xff\xff\xff\xff"  # begins an encapsulated message (Arrow's columnar format, "Encapsulated message")


class FlightData(NamedTuple):
    """One FlightData message. ipc: an encapsulated IPC message, None if there was none."""

    ipc: pa.Buffer | None
    app_metadata: pa.Buffer | None


def ticket(opaque: bytes) -> bytes:
    """A Ticket, serialized."""
    return sized(_TICKET, opaque)


def sized(number: int, value: bytes) -> bytes:
    """A protobuf field of bytes or text."""
    return _varint(number << 3 | _SIZED) + _varint(len(value)) + value


def flight_data(part: pa.Schema | pa.RecordBatch, descriptor: bytes = b"") -> bytes:
    """FlightData of a schema or a batch, serialized; descriptor: a serialized FlightDescriptor, for a first message."""
    ipc = pa.ipc.read_message(part.serialize())
    fields = [sized(_DESCRIPTOR, descriptor)] if descriptor else []
    fields.append(sized(_HEADER, ipc.metadata.to_pybytes()))
    if ipc.body is not None and ipc.body.size:
        fields.append(sized(_BODY, ipc.body.to_pybytes()))
    return b"".join(fields)


def result_body(result: bytes) -> bytes:
    """The body of a serialized Result, which has no other field."""
    if not result:
        return b""
    tag, at = _integer(result, 0)
    length, at = _integer(result, at)
    if tag != _RESULT_BODY << 3 | _SIZED or at + length != len(result):
        raise ProtocolError("Flight: a Result that is none")
    return result[at:]


def receive(call: Call, size: int) -> FlightData:
    """The next message, of so many bytes. Its body lies in memory of its own, 64-byte aligned, and is not copied."""
    header, app_metadata, early = b"", None, b""
    ipc: pa.Buffer | None = None
    fields = _Fields(call, size)
    while (field := fields.next()) is not None:
        number, length = field
        if number == _HEADER:
            header = fields.read(length)
        elif number == _METADATA:
            app_metadata = pa.py_buffer(fields.read(length))
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
    return FlightData(ipc, app_metadata)


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
    """A protobuf message's fields, one after the other.

    What comes before a body is small: it is taken from the call in one piece, with the body's begin, and looked at with
    few calls of Python. Other threads wait for its lock meanwhile.
    """

    def __init__(self, call: Call, size: int) -> None:
        self._call, self._coming = call, size  # bytes of the message that are not in the front
        self._front, self._at = b"", 0

    def next(self) -> tuple[int, int] | None:
        """Number and length of the next field, whose bytes must be read then; None at the message's end."""
        front, at = self._front, self._at
        if len(front) - at < _TAG_AND_LENGTH and self._coming:
            self._fetch(_TAG_AND_LENGTH)
            front, at = self._front, 0
        if at == len(front):
            return None
        try:
            tag, at = _integer(front, at)
            number, kind = tag >> 3, tag & 7
            if kind == _SIZED:
                length, at = _integer(front, at)
            elif kind in _FIXED:
                length = _FIXED[kind]
            elif kind == _VARINT:
                length = _integer(front, at)[1] - at
            else:
                raise ProtocolError(f"protobuf: field {number} has wire type {kind}")
        except IndexError:
            raise ProtocolError("protobuf: a message ends in the middle of a field") from None
        self._at = at
        left = self._coming + len(front) - at
        if length > left:
            raise ProtocolError(f"protobuf: a field of {length} bytes in a message that has {left} left")
        return number if kind == _SIZED else _OTHER, length

    def read(self, count: int) -> bytes:
        if self._at + count > len(self._front):
            self._fetch(count)
        first, self._at = self._at, self._at + count
        return self._front[first : self._at]

    def read_into(self, out: memoryview) -> None:
        here = self._front[self._at : self._at + len(out)]
        self._at += len(here)
        out[: len(here)] = here
        if len(here) < len(out):
            self._coming -= len(out) - len(here)
            self._call.read_into(out[len(here) :])

    def _fetch(self, count: int) -> None:
        """Makes the front begin here and have count bytes or more, as far as the message has them."""
        kept = self._front[self._at :]
        more = min(self._coming, max(_FRONT, count - len(kept)))
        self._front, self._at = kept + self._call.read(more), 0
        self._coming -= more


def _integer(data: bytes, at: int) -> tuple[int, int]:
    """The varint that begins at a place, and where it ends. IndexError where the data end before it."""
    value = shift = 0
    while (byte := data[at]) & 0x80:
        value |= (byte & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if shift > 63:
            raise ProtocolError("protobuf: an integer of more than 64 bits")
    return value | byte << shift, at + 1


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
