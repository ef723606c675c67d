# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""One gRPC call (PROTOCOL-HTTP2.md) on its own connection."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final
from urllib.parse import SplitResult

import pyarrow as pa

from kubeflow_datacache.credentials import Credentials
from kubeflow_datacache.h2 import frames, hpack, status
from kubeflow_datacache.h2.connection import Connection, Progress
from kubeflow_datacache.h2.errors import ProtocolError
from kubeflow_datacache.h2.shared import HEADER, Wanted

_STREAM: Final = 1
_PREFIX: Final = struct.Struct("!BI")  # prefix of a gRPC message: compressed flag and length
_MOST_CONTROL: Final = 1 << 20  # size limit of a header block, and of the payload of frames other than DATA


class Call:
    """Sends a request and reads the messages of the response. For one thread, except cancel.

    Raises OSError if the connection breaks, ProtocolError if the server violates the protocol, and for a gRPC error
    status the same exception as pyarrow.flight. window: the number of bytes, plus one frame, that the server may send
    before they are read. extra: headers in addition to those of HTTP/2, gRPC and the credentials. more: whether further
    messages follow the request, see send. shared: the memory to share with a server of this user on this machine.
    """

    def __init__(
        self,
        address: SplitResult,
        credentials: Credentials,
        path: str,
        request: bytes,
        extra: Iterable[hpack.Header] = (),
        *,
        window: int,
        more: bool = False,
        shared: Wanted | None = None,
    ) -> None:
        message = _PREFIX.pack(0, len(request)) + request
        if len(message) > frames.FIRST_WINDOW:
            raise status.exception(
                status.RESOURCE_EXHAUSTED, f"a request of {len(request)} bytes does not fit the window"
            )
        self._left = 0  # unread bytes of the current DATA frame
        self._padding = 0  # padding after them
        self._window = max(window, frames.FIRST_WINDOW + 1)
        self._taken = 0  # bytes received since the last WINDOW_UPDATE
        self._answered = self._ended = self._whole = False
        self.settings_received = False  # whether the server has sent SETTINGS, which shows that it speaks HTTP/2
        # send windows of the connection (0) and the stream
        self._may_send = {0: frames.FIRST_WINDOW, _STREAM: frames.FIRST_WINDOW - len(message)}
        self._may_send[0] -= len(message)
        self._first_window = frames.FIRST_WINDOW
        self.goaway = ""  # error code and reason of a GOAWAY frame, for error messages
        headers = (*_headers(address, path), *credentials.headers(address.geturl()), *extra)
        self._connection = Connection(address, credentials, frames.frame(frames.PING, 0, 0, bytes(8)))
        self._wanted = shared
        self._memory = None if shared is None else self._connection.shared_memory(shared)
        named = () if self._memory is None else ((HEADER, self._memory.token),)
        block = hpack.encode((*headers, *named))
        self._connection.send(
            frames.client_preface(self._window)
            + frames.frame(frames.HEADERS, frames.END_HEADERS, _STREAM, block)
            + frames.data(_STREAM, message, last=not more)
        )

    def send(self, request: bytes) -> None:
        """Sends another message; waits for flow control. All responses so far must have been read."""
        rest = memoryview(_PREFIX.pack(0, len(request)) + request)
        while rest:
            room = min(*self._may_send.values(), frames.FIRST_LARGEST)
            if room <= 0:
                if self._left or self._ended:
                    raise ProtocolError("an answer before its request was sent")
                self._frame()
                continue
            self._connection.send(frames.frame(frames.DATA, 0, _STREAM, bytes(rest[:room])))
            self._may_send = {stream: left - len(rest[:room]) for stream, left in self._may_send.items()}
            rest = rest[room:]

    def message(self) -> int | None:
        """Returns the length of the next message, which must then be read completely; None after the last, if the
        status is OK."""
        if self._memory is not None:
            self._memory.give_back()
        if not self._advance():
            return None
        compressed, size = _PREFIX.unpack(self.read(_PREFIX.size))
        if compressed:
            raise status.exception(status.UNIMPLEMENTED, "a compressed message, though we accept none")
        return size

    def read(self, count: int) -> bytes:
        """Reads the next `count` bytes."""
        if count <= self._left:
            self._left -= count
            return self._connection.read(count)
        out = bytearray(count)
        self.read_into(memoryview(out))
        return bytes(out)

    def read_into(self, out: memoryview) -> None:
        """Reads the next len(out) bytes into out."""
        done = 0
        while done < len(out):
            if not self._advance():
                raise ProtocolError("the answer ends in the middle of a message")
            here = min(len(out) - done, self._left)
            self._connection.read_into(out[done : done + here])
            self._left -= here
            done += here

    def shared(self, place: bytes) -> pa.Buffer:
        """The message at a place in the memory that is shared with the server."""
        if self._memory is None:
            raise ProtocolError("a message in memory that is not shared")
        return self._memory.message(place)

    def progress(self) -> Progress | None:
        """What the kernel knows of the connection; see Connection.progress."""
        return self._connection.progress()

    def cancel(self) -> None:
        """Makes reads fail at once; the server sees that the connection is closed."""
        self._connection.cancel()

    def close(self) -> None:
        """Closes the socket."""
        self._connection.close()
        memory, self._memory = self._memory, None
        if memory is None or self._wanted is None:
            return
        if self._whole:
            self._wanted.source.leave(memory)
        else:
            memory.close()

    def _advance(self) -> bool:
        """Reads frames until there are DATA bytes. Returns False at the end of the response."""
        while not self._left:
            if self._ended:
                if not self._whole:
                    raise ProtocolError("the answer ends without a status")
                return False
            if self._padding:
                self._connection.read(self._padding)
                self._padding = 0
            self._frame()
        return True

    def _frame(self) -> None:
        header = self._connection.read(frames.HEADER_BYTES)
        if header.startswith(b"HTTP/1.") and not self.settings_received:
            raise ProtocolError(f"the server answers in {header[:8].decode(errors='replace')}")
        size, kind, flags, stream = frames.decode_header(header)
        if kind == frames.DATA:
            self._data(size, flags, stream)
            return
        if size > _MOST_CONTROL:
            raise ProtocolError(f"a frame of kind {kind} and {size} bytes, want at most {_MOST_CONTROL}")
        payload = self._connection.read(size)
        if kind == frames.HEADERS:
            self._fields(payload, flags, stream)
        elif kind == frames.RST_STREAM:
            raise status.of_reset(_uint32(payload, 0))
        elif kind == frames.SETTINGS and not flags & frames.ACK:
            self._settings(payload)
            self._connection.send(frames.frame(frames.SETTINGS, frames.ACK, 0, b""))
        elif kind == frames.PING and not flags & frames.ACK:
            self._connection.send(frames.frame(frames.PING, frames.ACK, 0, payload))
        elif kind == frames.GOAWAY:
            self._goaway(payload)
        elif kind == frames.WINDOW_UPDATE:
            if stream in self._may_send:
                self._may_send[stream] += _uint32(payload, 0)
        elif kind in (frames.PUSH_PROMISE, frames.CONTINUATION):
            raise ProtocolError(f"a frame of kind {kind} out of place")

    def _data(self, size: int, flags: int, stream: int) -> None:
        if stream != _STREAM or not self._answered:
            raise ProtocolError(f"DATA on stream {stream} before its headers")
        self._restore_windows(size)
        if flags & frames.PADDED:
            self._padding = self._connection.read(1)[0]
            size -= 1 + self._padding
            if size < 0:
                raise ProtocolError(f"DATA with {self._padding} bytes of padding, more than it has")
        self._left = size
        self._ended = bool(flags & frames.END_STREAM)

    def _restore_windows(self, size: int) -> None:
        """Restores the receive windows when more than half of the connection's window is used."""
        self._taken += size
        if self._taken > self._window // 2:
            self._connection.send(frames.window_update(0, self._taken) + frames.window_update(_STREAM, self._taken))
            self._taken = 0

    def _fields(self, payload: bytes, flags: int, stream: int) -> None:
        """Reads headers or trailers, which may span several frames."""
        if stream != _STREAM:
            raise ProtocolError(f"HEADERS on stream {stream}")
        block = _unpadded(payload, flags)
        while not flags & frames.END_HEADERS:
            size, kind, more, stream = frames.decode_header(self._connection.read(frames.HEADER_BYTES))
            if kind != frames.CONTINUATION or stream != _STREAM or len(block) + size > _MOST_CONTROL:
                raise ProtocolError(f"a header block of more than {_MOST_CONTROL} bytes, or broken off")
            block, flags = block + self._connection.read(size), flags | more
        fields = dict(hpack.decode(block))
        if not self._answered and "grpc-status" not in fields:
            if fields.get(":status", "").startswith("1"):  # an informational (1xx) response
                return
            if error := status.of_http(fields):
                raise error
        self._answered = True
        if flags & frames.END_STREAM:
            if error := status.of_trailers(fields):
                raise error
            self._ended = self._whole = True

    def _settings(self, payload: bytes) -> None:
        self.settings_received = True
        if (first := frames.initial_window(payload)) is not None:
            self._may_send[_STREAM] += first - self._first_window
            self._first_window = first

    def _goaway(self, payload: bytes) -> None:
        """Handles GOAWAY: the server closes the connection, perhaps after this stream."""
        name, reason = frames.error_name(_uint32(payload, 4)), payload[8:].decode(errors="replace")
        self.goaway = f"the server ends the connection: {name} {reason}"
        if _uint32(payload, 0) & frames.STREAM_BITS < _STREAM:
            raise ConnectionResetError(self.goaway)


def _headers(address: SplitResult, path: str) -> tuple[hpack.Header, ...]:
    return (
        (":method", "POST"),
        (":scheme", "https" if address.scheme == "grpc+tls" else "http"),
        (":path", path),
        (":authority", address.netloc),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("user-agent", "kubeflow-datacache"),
    )


def _unpadded(payload: bytes, flags: int) -> bytes:
    """The header block fragment of a HEADERS frame, without padding and priority."""
    first = last = 0
    if flags & frames.PADDED:
        first, last = 1, payload[0] if payload else 0
    if flags & frames.WITH_PRIORITY:
        first += 5
    if first + last > len(payload):
        raise ProtocolError(f"HEADERS with {last} bytes of padding, more than it has")
    return payload[first : len(payload) - last]


def _uint32(payload: bytes, at: int) -> int:
    if len(payload) < at + 4:
        raise ProtocolError(f"a frame of {len(payload)} bytes, want {at + 4} or more")
    return int.from_bytes(payload[at : at + 4])
