# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A slow network: a TCP proxy that delays the server's data."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self

from kit.deadline import pause

_BYTES = 512  # size of the pieces in which a server's data are forwarded


class SlowWire:
    """Forwards connections to a loopback port, and delays each piece of the server's data by `seconds`."""

    def __init__(self, target: int, seconds: float) -> None:
        self._target, self._seconds = target, seconds
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                self._open += [client, server]
                threading.Thread(target=_pass, args=(client, server, 1 << 16, 0.0), daemon=True).start()
                threading.Thread(target=_pass, args=(server, client, _BYTES, self._seconds), daemon=True).start()


def _pass(source: socket.socket, sink: socket.socket, most: int, seconds: float) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(most):
            pause(seconds)
            sink.sendall(piece)
        sink.shutdown(socket.SHUT_WR)
