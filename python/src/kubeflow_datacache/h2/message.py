# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Protobuf messages of Flight.proto: receives FlightData without copying its body, and encodes requests."""

from __future__ import annotations

from typing import Final, NamedTuple

import pyarrow as pa

from kubeflow_datacache.h2.call import Call
from kubeflow_datacache.h2.errors import ProtocolError
from kubeflow_datacache.rows.heap import HEAP

_DESCRIPTOR, _HEADER, _METADATA, _BODY = 1, 2, 3, 1000  # field numbers of FlightData
_SHARED: Final = 1001  # our own field: where in shared memory the encapsulated message is
_TICKET: Final = 1  # field number in Ticket
_RESULT_BODY: Final = 1  # field number in Result
_OTHER: Final = 0  # returned for fields without a length prefix; no field has this number
_VARINT, _SIZED = 0, 2  # protobuf's wire types
_FIXED: Final = {1: 8, 5: 4}  # size in bytes by wire type
_ALIGNED: Final = 64  # alignment that Arrow recommends for buffers
_TAG_AND_LENGTH: Final = 20  # maximum size of two varints
# bytes read at once: enough for a batch's header and metadata, unless it has more than about thirty columns
_FRONT: Final = 1024
_MARK: Final = b"\xff\xff\xff\xff"  # start of an encapsulated message (Arrow's columnar format, "Encapsulated message")


class FlightData(NamedTuple):
    """A FlightData message. ipc: an encapsulated IPC message, or None."""

    ipc: pa.Buffer | None
    app_metadata: pa.Buffer | None


def ticket(opaque: bytes) -> bytes:
    """Encodes a Ticket."""
    return bytes_field(_TICKET, opaque)


def action(name: str, body: bytes) -> bytes:
    """Encodes an Action."""
    return bytes_field(1, name.encode()) + bytes_field(2, body)


def bytes_field(number: int, value: bytes) -> bytes:
    """Encodes a protobuf field of type bytes or string."""
    return _varint(number << 3 | _SIZED) + _varint(len(value)) + value


def flight_data(part: pa.Schema | pa.RecordBatch, descriptor: bytes = b"") -> bytes:
    """Encodes FlightData of a schema or record batch. descriptor: serialized, for the first message only."""
    ipc = pa.ipc.read_message(part.serialize())
    fields = [bytes_field(_DESCRIPTOR, descriptor)] if descriptor else []
    fields.append(bytes_field(_HEADER, ipc.metadata.to_pybytes()))
    if ipc.body is not None and ipc.body.size:
        fields.append(bytes_field(_BODY, ipc.body.to_pybytes()))
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
    """Receives a FlightData message of `size` bytes. The body goes directly into 64-byte-aligned memory, without a
    copy."""
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
            ipc, body = _allocate_ipc(header, length)
            fields.read_into(body)
        elif number == _SHARED:
            ipc = call.shared(fields.read(length))
        elif number == _BODY:  # body before header: allowed, though no known writer does it
            early = fields.read(length)
        else:
            fields.read(length)
    if header and ipc is None:
        ipc, body = _allocate_ipc(header, len(early))
        body[:] = early
    return FlightData(ipc, app_metadata)


def _allocate_ipc(header: bytes, size: int) -> tuple[pa.Buffer, memoryview]:
    """Allocates an encapsulated message with this header. Returns it and a view of its body, to be filled."""
    start = _MARK + (_padded(len(_MARK) + 4 + len(header)) - 8).to_bytes(4, "little") + header
    front = _padded(len(start))
    whole, view = HEAP.allocate(front + size)
    view[:front] = start.ljust(front, b"\0")
    return whole, view[front:]


def _padded(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


class _Fields:
    """Iterates over the fields of a protobuf message.

    The fields before a body are small. They are read in one piece, together with the start of the body, and parsed with
    few Python calls, as other threads wait for the GIL meanwhile.
    """

    def __init__(self, call: Call, size: int) -> None:
        self._call, self._coming = call, size  # message bytes that were not read into _front yet
        self._front, self._at = b"", 0

    def next(self) -> tuple[int, int] | None:
        """The number and length of the next field, which must then be read; None at the end of the message."""
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
        """Discards what was parsed and reads until _front has at least `count` bytes, or the message ends."""
        kept = self._front[self._at :]
        more = min(self._coming, max(_FRONT, count - len(kept)))
        self._front, self._at = kept + self._call.read(more), 0
        self._coming -= more


def _integer(data: bytes, at: int) -> tuple[int, int]:
    """Decodes the varint at an offset. Returns it and the next offset. Raises IndexError if data is too short."""
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
