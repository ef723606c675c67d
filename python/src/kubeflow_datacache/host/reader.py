# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The process that reads for the ranks of a host.

python -m kubeflow_datacache.host.reader DESCRIPTOR, of a listening socket; standard input is a pickled Request.
"""

from __future__ import annotations

import os
import pickle
import selectors
import signal
import socket
import sys
import time
from typing import Final

from kubeflow_datacache.host import protocol
from kubeflow_datacache.host.protocol import Request, Start
from kubeflow_datacache.host.stream import Client, HostStream

_LINGER_SECONDS: Final = 2.0  # without ranks, as between two epochs
# How the prefetch_bytes of all parts are divided: messages received, the block that is being merged, blocks that ranks
# have not taken. A rank's own queue has the rest.
_AHEAD_SHARE, _BLOCK_SHARE, _PUBLISHED_SHARE = 2, 8, 4


class Reader:
    """Serves ranks that connect to a listening socket, until there are none."""

    def __init__(self, listener: socket.socket, request: Request) -> None:
        self._listener, self._request = listener, request
        self._streams: dict[Start, HostStream] = {}
        self._clients: dict[Client, HostStream | None] = {}  # None until the rank has said what it wants
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)

    def run(self) -> None:
        """Serves ranks, until there were none for some seconds."""
        alone_since = time.monotonic()
        while self._clients or time.monotonic() - alone_since < _LINGER_SECONDS:
            for key, _ in self._selector.select(_LINGER_SECONDS):
                if key.data is None:
                    self._accept()
                elif not self._serve(key.data):
                    self._drop(key.data)
                    alone_since = time.monotonic()

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        try:
            protocol.check_peer(connection)
        except protocol.HostError:
            connection.close()
            return
        client = Client(connection)
        self._clients[client] = None
        self._selector.register(connection, selectors.EVENT_READ, client)

    def _serve(self, client: Client) -> bool:
        """Reads one packet of a rank. Returns False if the rank is gone, or cannot be served."""
        try:
            packet = client.connection.recv(protocol.MOST_BYTES)
        except OSError:
            return False
        stream = self._clients[client]
        if stream is None:
            return len(packet) == protocol.JOIN.size and self._join(client, *protocol.JOIN.unpack(packet))
        if len(packet) != protocol.NUMBER.size:
            return False
        (number,) = protocol.NUMBER.unpack(packet)
        if number == protocol.ASK:
            client.send(stream.state)
        else:
            stream.take(client, number)
        return True

    def _join(self, client: Client, *told: int) -> bool:
        """Adds a rank to the stream that begins at a place, or to a new one."""
        start, client.part = Start(*told[:-1]), told[-1]
        if client.part >= self._request.parts:
            return False
        stream = self._streams.get(start)
        if stream is None or not stream.join(client):
            try:
                stream = self._open(start)
            except Exception as error:
                client.send(protocol.FAILED + f"{type(error).__name__}: {error}".encode()[: protocol.MOST_BYTES - 1])
                return False
            self._streams[start] = stream
            stream.join(client)
        self._clients[client] = stream
        return True

    def _open(self, start: Start) -> HostStream:
        options, request = self._request.options, self._request
        loader = request.source.loader(**options)
        if loader.dataset.fingerprint != request.fingerprint:
            raise protocol.HostError("the cache serves another dataset now")
        parts, prefetch = request.parts, request.parts * options["prefetch_bytes"]
        ahead, block, limit = (prefetch // share for share in (_AHEAD_SHARE, _BLOCK_SHARE, _PUBLISHED_SHARE))
        merge, steps, bounds = loader.merge_from(start, ahead=ahead, block=block // min(parts, 2), parts=parts)
        return HostStream(merge, steps, bounds, start.step, ranks=request.ranks, limit=limit)

    def _drop(self, client: Client) -> None:
        self._selector.unregister(client.connection)
        client.connection.close()
        stream = self._clients.pop(client)
        if stream is None:
            return
        stream.leave(client)
        if stream not in self._clients.values():
            self._streams = {key: each for key, each in self._streams.items() if each is not stream}


def main() -> None:
    """Reads the request and serves ranks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ends with the ranks
    listener = socket.socket(fileno=int(sys.argv[1]))
    listener.set_inheritable(False)
    Reader(listener, pickle.load(sys.stdin.buffer)).run()
    sys.stderr.flush()
    os._exit(0)  # threads that still read end with the process


if __name__ == "__main__":
    main()
