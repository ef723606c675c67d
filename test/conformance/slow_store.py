# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A slow object store in this process: the part of S3 that a cache of one Parquet file needs."""

from __future__ import annotations

import re
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from kit.deadline import pause

BUCKET = "slow"


class SlowStore:
    """Serves the files of a folder as objects of the bucket. At most `at_once` reads of data are answered at a time.

    seconds: how long each read of a data file's row group takes. broken: whether these reads are refused. With hold,
    reads of a row group are not answered before release: what reads it can't end before that.
    """

    def __init__(self, folder: Path, seconds: float, at_once: int = 4) -> None:
        self.folder, self.seconds, self.broken, self.reads = folder, seconds, False, 0
        self.places = threading.Semaphore(at_once)
        self.endpoint = ""
        self.held = -1  # a byte of the row group
        self.released = threading.Event()

    @contextmanager
    def served(self) -> Generator[None]:
        """Answers requests inside the with block."""
        store = self

        class Handler(_Handler):
            def do_HEAD(self) -> None:
                self.answer(store, body=False)

            def do_GET(self) -> None:
                self.answer(store, body=True)

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.release()
            server.shutdown()
            server.server_close()
            thread.join()

    def hold(self, name: str, group: int) -> None:
        """Holds a row group of a file."""
        column = pq.read_metadata(self.folder / name).row_group(group).column(0)
        self.held = column.data_page_offset

    def release(self) -> None:
        """Answers what is held, and all reads from now on."""
        self.released.set()

    def environment(self) -> dict[str, str]:
        """The environment of a cacheserver that reads from this store."""
        key = {
            "AWS_ACCESS_KEY_ID": "none",
            "AWS_SECRET_ACCESS_KEY": "none",
            "AWS_REGION": "us-east-1",
        }
        return {"AWS_ENDPOINT_URL_S3": self.endpoint, **key}

    def write(self, name: str, rows: pa.Table, group: int) -> str:
        """Writes a Parquet file with row groups of `group` rows; returns its URI in the bucket."""
        pq.write_table(rows, self.folder / name, row_group_size=group)
        return f"s3://{BUCKET}/{name}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, store: SlowStore, *, body: bool) -> None:
        """Sends an object or a range of it."""
        if "list-type=2" in self.path:  # of the folder table.parquet/, which there is not
            self.reply(200, b"<ListBucketResult></ListBucketResult>")
            return
        path = store.folder / self.path.split("?")[0].removeprefix(f"/{BUCKET}/")
        if not path.is_file():
            self.reply(404, b"")
            return
        whole, code = path.stat().st_size, 200
        first, last = 0, whole - 1
        if match := re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", "")):
            first = int(match[1]) if match[1] else max(0, whole - int(match[2]))
            last = min(int(match[2]), whole - 1) if match[1] and match[2] else whole - 1
            code = 206
        if body and path.suffix == ".parquet" and last < whole - 1:  # not a footer
            if first <= store.held <= last:
                store.released.wait()
            if store.broken:
                self.reply(403, b"")
                return
            with store.places:
                pause(store.seconds)
                store.reads += 1
        with path.open("rb") as file:
            file.seek(first)
            data = file.read(last + 1 - first)
        self.reply(
            code,
            data,
            body=body,
            place=f"bytes {first}-{last}/{whole}" if code == 206 else "",
        )

    def reply(self, code: int, data: bytes, *, body: bool = True, place: str = "") -> None:
        """Sends an answer."""
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", '"one"')
        self.send_header("Last-Modified", "Fri, 01 Jan 2027 00:00:00 GMT")
        if place:
            self.send_header("Content-Range", place)
        self.end_headers()
        if body:
            self.wfile.write(data)

    def handle(self) -> None:
        """Ignores that a cache that is killed resets its connections."""
        with suppress(ConnectionError):
            super().handle()

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing."""
