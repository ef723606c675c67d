# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Connection: a TCP or TLS connection to a server, with a liveness check."""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
import weakref
from typing import Final, NamedTuple
from urllib.parse import SplitResult

from kubeflow_datacache.credentials import Credentials
from kubeflow_datacache.h2.shared import SharedMemory, Wanted
from kubeflow_datacache.h2.tls import TlsStream

_CONNECT_SECONDS: Final = 10.0
_SILENT_SECONDS: Final = 7.5  # seconds without data before a PING is sent; the connection fails after as long again
_SCRATCH: Final = 1 << 16  # size of the read-ahead buffer, which saves a system call for each small read
_TCP_INFO_BYTES: Final = 152  # up to tcpi_min_rtt
_LARGE: Final = 1 << 16  # reads of at least this size use MSG_WAITALL: one call that releases the GIL once


class Progress(NamedTuple):
    """Fields of TCP_INFO (linux/tcp.h): bytes received, whether what was sent is being sent again, as nobody has
    confirmed it, and the shortest round trip in seconds."""

    received: int
    lost: bool
    round_trip: float


class Connection:
    """A connection with one reading thread. ping: bytes of a request that a live server answers.

    Reads raise OSError if the connection is broken or closed, or if the server does not answer a ping. cancel and close
    are safe from any thread.
    """

    def __init__(self, address: SplitResult, credentials: Credentials, ping: bytes) -> None:
        self._ping = ping
        self._socket, self._tls = _open(address, credentials)
        self.close = weakref.finalize(self, self._socket.close)  # also closes when this object is garbage-collected
        self._memory = bytearray(_SCRATCH)
        self._scratch = memoryview(self._memory)
        self._first = self._last = 0  # the unread range of the scratch buffer

    def send(self, data: bytes) -> None:
        """Sends all bytes."""
        if self._tls is not None:
            self._tls.send(data)
        else:
            self._socket.sendall(data)

    def read(self, count: int) -> bytes:
        """Reads the next `count` bytes."""
        if count <= self._last - self._first:
            first = self._first
            self._first = first + count
            return bytes(self._scratch[first : self._first])
        out = bytearray(count)
        self.read_into(memoryview(out))
        return bytes(out)

    def read_into(self, out: memoryview) -> None:
        """Reads the next len(out) bytes into out; large reads need no copy."""
        done = min(len(out), self._last - self._first)
        out[:done] = self._scratch[self._first : self._first + done]
        self._first += done
        while done < len(out):
            rest = out[done:]
            got = self._receive(rest)
            done += got
            if got > len(rest):
                self._first, self._last, done = 0, got - len(rest), len(out)

    def progress(self) -> Progress | None:
        """What the kernel knows of the connection; None where it does not tell, as outside Linux. Safe from any
        thread."""
        if sys.platform != "linux":
            return None
        with contextlib.suppress(OSError, struct.error):  # the connection may be closed already
            info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
            received, round_trip = struct.unpack_from("@Q", info, 128)[0], struct.unpack_from("@I", info, 148)[0]
            return Progress(received, info[2] > 0, round_trip / 1e6)
        return None

    def shared_memory(self, wanted: Wanted) -> SharedMemory | None:
        """Memory that is shared with the server; None if it runs elsewhere, or as another user."""
        return wanted.source.take(self._socket, wanted.slots)

    def cancel(self) -> None:
        """Makes reads fail at once."""
        with contextlib.suppress(OSError):  # the connection may be closed already
            self._socket.shutdown(socket.SHUT_RDWR)

    def _receive(self, out: memoryview) -> int:
        """Receives some bytes into out, and any further bytes into the scratch buffer, which must be empty."""
        asked = False
        while True:
            try:
                if self._tls is not None:
                    got = self._receive_tls(self._tls, out)
                elif len(out) >= _LARGE:
                    got = self._socket.recv_into(out, len(out), socket.MSG_WAITALL)
                else:
                    got = self._socket.recvmsg_into([out, self._scratch])[0]
            except (BlockingIOError, TimeoutError):
                if asked:
                    raise TimeoutError(f"no sign of life for {2 * _SILENT_SECONDS:g} s") from None
                asked = True
                self.send(self._ping)
                continue
            if not got:
                raise ConnectionResetError("the connection was closed")
            return got

    def _receive_tls(self, tls: TlsStream, out: memoryview) -> int:
        if len(out) >= _SCRATCH:
            return tls.receive_into(out, whole=True)
        got = tls.receive_into(self._scratch, whole=False)
        here = min(got, len(out))
        out[:here] = self._scratch[:here]
        self._scratch[: got - here] = self._scratch[here:got]
        return got


def _open(address: SplitResult, credentials: Credentials) -> tuple[socket.socket, TlsStream | None]:
    host, port = address.hostname or "", address.port or 0
    plain, tls = socket.create_connection((host, port), timeout=_CONNECT_SECONDS), None
    try:
        _set_options(plain)
        if address.scheme == "grpc+tls":
            tls = TlsStream(plain, credentials.context(), credentials.hostname or host)
        # Not settimeout: with it, Python polls before each call, and MSG_WAITALL does not wait for all bytes.
        plain.settimeout(None)
        seconds, micros = divmod(round(_SILENT_SECONDS * 1e6), 1_000_000)
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", seconds, micros))
    except BaseException:
        plain.close()
        raise
    return plain, tls


def _set_options(plain: socket.socket) -> None:
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # keeps the connection open while a reader waits for its consumer
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(2 * _SILENT_SECONDS * 1000))
