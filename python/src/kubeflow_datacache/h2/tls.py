# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""TlsStream: TLS over a socket with few system calls."""

from __future__ import annotations

import socket
import ssl
from typing import Any, Final

_CHUNK: Final = 1 << 17  # bytes that one system call receives at most
_RECORD: Final = 5 + (1 << 14) + 256  # the greatest length of a record (RFC 8446, section 5.2)
_LARGE: Final = 1 << 16  # bytes that are worth waiting for


class TlsStream:
    """TLS over a socket. For one thread, except that the socket may be shut down from any.

    ssl.SSLSocket makes two system calls for each record of 16 KiB, and waits for the GIL after each. Here, one call
    receives many records, and OpenSSL decrypts them from memory straight into the caller's buffer.
    """

    def __init__(self, plain: socket.socket, context: ssl.SSLContext, hostname: str) -> None:
        """Does the handshake. Raises OSError, of which ssl.SSLError is one."""
        self._socket, self._received, self._to_send = plain, ssl.MemoryBIO(), ssl.MemoryBIO()
        # Typed Any: typeshed declares that read returns bytes, but with a buffer it returns their number.
        self._tls: Any = context.wrap_bio(self._received, self._to_send, server_hostname=hostname)
        self._chunk = memoryview(bytearray(_CHUNK))
        try:
            while True:
                try:
                    self._tls.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    self._flush()
                    if not self._fetch(0):
                        raise ConnectionResetError("the connection was closed during the TLS handshake") from None
        finally:
            self._flush()  # also an alert that says why the handshake failed

    def send(self, data: bytes) -> None:
        """Sends all bytes."""
        self._tls.write(data)
        self._flush()

    def receive_into(self, out: memoryview, *, whole: bool) -> int:
        """Receives some bytes, or with `whole`, which says that they are on their way, all. Returns 0 at the end."""
        done = 0
        while done < len(out):
            try:
                done += (got := self._tls.read(len(out) - done, out[done:]))
                if not got:
                    break
            except ssl.SSLWantReadError:
                if done and not whole:
                    break
                # Records are longer than what is in them, and OpenSSL holds a part of one at most.
                coming = len(out) - done - self._received.pending - _RECORD if whole else 0
                try:
                    if not self._fetch(coming):
                        break
                except BlockingIOError:
                    if done:
                        break
                    raise
            except ssl.SSLZeroReturnError:
                break
        if self._to_send.pending:  # an answer to the server's KeyUpdate
            self._flush()
        return done

    def _fetch(self, coming: int) -> int:
        """Receives records, and waits until many are there if at least `coming` bytes are on their way."""
        if coming >= _LARGE:
            got = self._socket.recv_into(self._chunk, min(coming, _CHUNK), socket.MSG_WAITALL)
        else:
            got = self._socket.recv_into(self._chunk)
        self._received.write(self._chunk[:got])
        return got

    def _flush(self) -> None:
        if self._to_send.pending:
            self._socket.sendall(self._to_send.read())
