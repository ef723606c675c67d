# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""An HTTP/2 server that accepts one request, on stream 1, and then runs a script that sends the response bytes."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterable
from typing import Self

import pyarrow as pa

from kubeflow_datacache.h2 import frames, hpack

SETTINGS = frames.frame(frames.SETTINGS, 0, 0, b"")
HEADERS = [(":status", "200"), ("content-type", "application/grpc")]


class Connection:
    """A script's connection. Receiving skips SETTINGS, WINDOW_UPDATE and acknowledgements."""

    def __init__(self, peer: socket.socket) -> None:
        self._socket, self._file = peer, peer.makefile("rb")
        self.frames: list[tuple[int, int, int, bytes]] = []  # frames received after the preface

    def send(self, *parts: bytes) -> None:
        """Sends the parts."""
        self._socket.sendall(b"".join(parts))

    def frame(self) -> tuple[int, int, int, bytes]:
        """The next frame: kind, flags, stream, payload."""
        size, kind, flags, stream = frames.decode_header(self._read(frames.HEADER_BYTES))
        self.frames.append((kind, flags, stream, self._read(size)))
        return self.frames[-1]

    def until(self, kind: int, flags: int) -> bytes:
        """Receives frames until one has this kind and these flags; returns its payload."""
        while True:
            came, has, _, payload = self.frame()
            if came == kind and has & flags == flags:
                return payload

    def request(self) -> None:
        """Receives the preface and the complete request."""
        assert self._read(len(frames.PREFACE)) == frames.PREFACE
        self.send(SETTINGS)
        self.until(frames.DATA, frames.END_STREAM)

    def drain(self) -> None:
        """Receives frames until the client disconnects."""
        with contextlib.suppress(EOFError, OSError):
            while True:
                self.frame()

    def half_close(self) -> None:
        """Closes the sending direction."""
        self._socket.shutdown(socket.SHUT_WR)

    def end(self) -> None:
        """Shuts the connection down, which also unblocks a thread that waits for the client."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes the socket."""
        self._file.close()
        self._socket.close()

    def _read(self, count: int) -> bytes:
        got = self._file.read(count)
        if len(got) < count:
            raise EOFError
        return got


class Script:
    """Runs a script for each connection."""

    def __init__(self, script: Callable[[Connection], object]) -> None:
        self._script = script
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.location = f"grpc://127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections: list[Connection] = []
        self._players: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()
        for connection in self.connections:
            connection.end()
        for player in self._players:
            player.join()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = self._listener.accept()
                self.connections.append(Connection(peer))
                self._players.append(threading.Thread(target=self._play, args=(self.connections[-1],)))
                self._players[-1].start()

    def _play(self, connection: Connection) -> None:
        with contextlib.closing(connection), contextlib.suppress(EOFError, OSError):  # the client may have disconnected
            self._script(connection)
            connection.half_close()
            connection.drain()


def headers(fields: Iterable[hpack.Header] = HEADERS, flags: int = frames.END_HEADERS) -> bytes:
    """Response headers."""
    return frames.frame(frames.HEADERS, flags, 1, hpack.encode(fields))


def trailers(code: int | str = 0, message: str = "") -> bytes:
    """Trailers that end the stream with a status."""
    return headers([("grpc-status", str(code)), ("grpc-message", message)], frames.END_HEADERS | frames.END_STREAM)


def data(payload: bytes, flags: int = 0, stream: int = 1) -> bytes:
    """A DATA frame."""
    return frames.frame(frames.DATA, flags, stream, payload)


def message(payload: bytes, compressed: int = 0) -> bytes:
    """A gRPC message."""
    return struct.pack("!BI", compressed, len(payload)) + payload


def field(number: int, payload: bytes) -> bytes:
    """A length-delimited protobuf field."""
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def varint(value: int) -> bytes:
    """A protobuf varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def flight_data(part: pa.Schema | pa.RecordBatch, app_metadata: bytes = b"", extra: bytes = b"") -> bytes:
    """A gRPC message with FlightData of a schema or record batch. extra: fields to put first."""
    ipc = pa.ipc.read_message(part.serialize())
    header, body = ipc.metadata.to_pybytes(), ipc.body
    fields = [extra, field(2, header)]
    if app_metadata:
        fields.append(field(3, app_metadata))
    if body is not None and body.size:
        fields.append(field(1000, body.to_pybytes()))
    return message(b"".join(fields))
