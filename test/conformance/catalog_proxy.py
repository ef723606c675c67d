# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A proxy before a REST catalog, which loses, denies or delays commits, or kills something in the middle of them."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from kit.deadline import limit


class Proxy(ThreadingHTTPServer):
    """Passes requests on to a catalog, and does something with the next commits, and the next looks at a table."""

    daemon_threads = True

    def __init__(self, catalog: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.catalog = catalog.removeprefix("http://")
        self.uri = f"http://127.0.0.1:{self.server_port}"
        self.next: list[Fault] = []
        self.next_looks: list[Fault] = []
        self.commits = 0
        self.limit = limit()
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    protocol_version = "HTTP/1.1"
    server: Proxy  # pyright: ignore[reportIncompatibleVariableOverride]

    def handle_any(self) -> None:
        """Passes a request on."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.command == "POST" and b'"requirements"' in body:
            self.server.commits += 1
            if self.server.next:
                self.server.next.pop(0)(self, body)
                return
        elif self.command == "GET" and "/tables/" in self.path and self.server.next_looks:
            self.server.next_looks.pop(0)(self, body)
            return
        self.answer(*self.ask(body))

    do_GET = do_POST = do_HEAD = do_DELETE = handle_any

    def ask(self, body: bytes) -> tuple[int, bytes]:
        """The catalog's answer."""
        to = http.client.HTTPConnection(self.server.catalog, timeout=self.server.limit)
        kept = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "content-length", "accept-encoding")}
        to.request(self.command, self.path, body or None, kept)
        answer = to.getresponse()
        return answer.status, answer.read()

    def answer(self, code: int, body: bytes) -> None:
        """Answers the client."""
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def handle(self) -> None:
        """Ignores that a head that is killed resets its connections."""
        with suppress(ConnectionError):
            super().handle()

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing."""


Fault = Callable[[Handler, bytes], None]


def lose(handler: Handler, body: bytes) -> None:
    """The catalog commits, and the client hears of an error."""
    handler.ask(body)
    handler.answer(503, b"")


def drop(handler: Handler, body: bytes) -> None:
    """The catalog commits, and the connection breaks."""
    handler.ask(body)
    handler.close_connection = True
    handler.connection.close()


def deny(handler: Handler, body: bytes) -> None:
    """The catalog does not hear of it."""
    handler.answer(500, b"")


def late(handler: Handler, body: bytes) -> None:
    """The client hears of an error, and the catalog gets the request when the client tries again, just before that."""

    def first(again: Handler, retried: bytes) -> None:
        again.ask(body)
        again.answer(*again.ask(retried))

    handler.server.next.insert(0, first)
    handler.answer(504, b"")


def too_late(handler: Handler, body: bytes) -> None:
    """The client hears of an error, and the catalog gets the request when the client tries again, just after that."""

    def last(again: Handler, retried: bytes) -> None:
        answer = again.ask(retried)
        again.ask(body)
        again.answer(*answer)

    handler.server.next.insert(0, last)
    handler.answer(504, b"")


FAULTS: tuple[Fault, ...] = (lose, drop, deny, late, too_late)


def killing(kill: Callable[[], None], *, answered: bool) -> Fault:
    """Kills something while the client waits: before the catalog gets the request, or when it has answered."""

    def fault(handler: Handler, body: bytes) -> None:
        if not answered:
            kill()
        answer = handler.ask(body)
        if answered:
            kill()
        handler.answer(*answer)

    return fault
