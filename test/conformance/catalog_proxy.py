# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A proxy before a REST catalog, which loses, denies or delays commits."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Proxy(ThreadingHTTPServer):
    """Passes requests on to a catalog, and does something with the next commits."""

    daemon_threads = True

    def __init__(self, catalog: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.catalog = catalog.removeprefix("http://")
        self.uri = f"http://127.0.0.1:{self.server_port}"
        self.next: list[Callable[[Handler, bytes], None]] = []
        self.commits = 0
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
        self.answer(*self.ask(body))

    do_GET = do_POST = do_HEAD = do_DELETE = handle_any

    def ask(self, body: bytes) -> tuple[int, bytes]:
        """The catalog's answer."""
        to = http.client.HTTPConnection(self.server.catalog, timeout=60)
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

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing."""


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
    """The client hears of an error, and the catalog gets the request only when the client has tried again."""
    handler.answer(504, b"")
    handler.wfile.flush()
    time.sleep(0.3)
    handler.ask(body)
