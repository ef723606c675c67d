# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""TlsStream: every byte arrives, however the network cuts the records, and no read waits for more than is sent."""

from __future__ import annotations

import itertools
import random
import socket
import ssl
import struct
import threading
from collections.abc import Iterator

import pytest
import trustme
from kit.deadline import Wait, limit, pause

from kubeflow_datacache.h2.tls import TlsStream

AUTHORITY = trustme.CA()
LIMIT = limit()
SIZES = (1, 100, 1 << 14, 70_000, 1 << 17, 300_000, 1_000_000)


class Server:
    """The server's side of a connection, which is written record by record and cut anywhere."""

    def __init__(self, plain: socket.socket) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        AUTHORITY.issue_cert("datacache").configure_cert(context)
        self._plain, self._in, self._out = plain, ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=True)

    def handshake(self) -> None:
        """Does the handshake."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._plain.sendall(self._out.read())
                self._in.write(self._plain.recv(1 << 16))
            else:
                self._plain.sendall(self._out.read())
                return

    def send(self, data: bytes, cuts: list[float]) -> None:
        """Sends the records of some bytes, as pieces that end at fractions of their length."""
        self._tls.write(data)
        records = self._out.read()
        at = [0, *sorted(int(cut * len(records)) for cut in cuts), len(records)]
        for first, end in itertools.pairwise(at):
            self._plain.sendall(records[first:end])
            pause(0.001)  # so that the client receives them apart

    def receive(self) -> bytes:
        """The next bytes of the client."""
        while True:
            try:
                return self._tls.read(1 << 16)
            except ssl.SSLWantReadError:
                self._in.write(self._plain.recv(1 << 16))


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The two ends of a connection."""
    ours, theirs = socket.socketpair()
    ours.settimeout(LIMIT)
    theirs.settimeout(LIMIT)
    with ours, theirs:
        yield ours, theirs


def client(plain: socket.socket) -> TlsStream:
    """The client's side."""
    context = ssl.create_default_context(cadata=AUTHORITY.cert_pem.bytes().decode())
    return TlsStream(plain, context, "datacache")


def test_cut_records_arrive_and_nobody_waits_for_more(
    ends: tuple[socket.socket, socket.socket], rng: random.Random
) -> None:
    ours, theirs = ends
    sent, acknowledged = list[bytes](), threading.Semaphore(0)

    def serve() -> None:
        server = Server(theirs)
        server.handshake()
        for size in SIZES * 3:
            sent.append(rng.randbytes(size))
            server.send(sent[-1], [rng.random() for _ in range(rng.randrange(6))])
            if not acknowledged.acquire(timeout=LIMIT):  # nothing follows before the client has all of it
                return

    thread = threading.Thread(target=serve)
    thread.start()
    stream = client(ours)
    ours.settimeout(None)  # as connections are: a read that waits for too much ends after SO_RCVTIMEO
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", round(LIMIT), 0))
    for i, size in enumerate(SIZES * 3):
        out = bytearray(size)
        assert stream.receive_into(memoryview(out), whole=True) == size
        assert out == sent[i]
        acknowledged.release()
    thread.join(LIMIT)


def test_a_timeout_loses_no_bytes(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    data, more = random.Random(1).randbytes(200_000), threading.Event()

    def serve() -> None:
        server = Server(theirs)
        server.handshake()
        server.send(data[:100_000], [])
        more.wait(LIMIT)
        server.send(data[100_000:], [])
        assert server.receive() == b"ping"

    thread = threading.Thread(target=serve)
    thread.start()
    stream = client(ours)
    ours.setblocking(False)  # reads raise BlockingIOError, as after the time of SO_RCVTIMEO
    out, done, wait = bytearray(len(data)), 0, Wait()
    while done < len(data):
        assert not wait.over(), f"{len(data) - done} bytes are lost"
        try:
            done += stream.receive_into(memoryview(out)[done:], whole=True)
        except BlockingIOError:
            if done >= 100_000:
                more.set()
    assert out == data
    ours.settimeout(LIMIT)
    stream.send(b"ping")
    thread.join(LIMIT)


def test_a_server_that_leaves_during_the_handshake(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    theirs.close()
    with pytest.raises(ConnectionError):
        client(ours)
