# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A load and an epoch of a head and two data nodes, while every packet is kept. Prints what the packets show, as JSON.

To be run in a network namespace of its own. Arguments: the server, an empty folder, and "TLS" or "Plain".
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from lake import Lake
from server import Cache, Caches

from kubeflow_datacache import DataCache, World
from readers import Readers

ROWS = 400
ROW, LOAD_FILTER, FILTER = "canary-of-a-row", "canary-of-the-cache-s-filter", "canary-of-a-filter"

# Of linux/if_ether.h, asm-generic/socket.h, linux/socket.h and linux/if_packet.h; Python has none of them.
_ALL, _BUFFER_FORCE, _PACKET, _STATISTICS = 0x0003, 33, 263, 6
_BUFFER = 256 << 20  # all packets fit: they are read at the end


def packets(tap: socket.socket) -> Iterator[bytes]:
    """The packets that have come. Raises if the kernel had no room for some."""
    _, dropped = struct.unpack("II", tap.getsockopt(_PACKET, _STATISTICS, 8))
    assert dropped == 0, f"{dropped} packets were dropped"
    tap.setblocking(False)
    while True:
        try:
            yield tap.recv(1 << 18)
        except BlockingIOError:
            return


def epoch(cache: Cache, readers: Readers, folder: Path, token: str, mode: str) -> list[int]:
    """The ids of an epoch of the rows that pass a filter."""
    if mode == "TLS":
        (folder / "ca.crt").write_bytes(readers.roots)
        (folder / "token").write_text(token)
        endpoint = cache.endpoint.replace("grpc://", "grpc+tls://")
        source = DataCache.from_env({"DATACACHE_ENDPOINT": endpoint, "DATACACHE_CREDENTIALS": str(folder)})
    else:
        source = DataCache(cache.endpoint, token=lambda: token)
    with source as one:
        loader = one.loader(global_batch_size=50, seed=1, tail="keep", filter=f"text != '{FILTER}'", world=World(0, 1))
        return [i for step in loader for i in step["id"].to_pylist()]


def main() -> None:
    """Loads, trains, looks."""
    server, folder, mode = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    os.environ["DATACACHE_SHARED_MEMORY"] = "off"  # rows are to be in packets
    readers = Readers(folder)
    token = readers.token()
    rows = pa.table({"id": range(ROWS), "text": [f"{ROW}-{i}" for i in range(ROWS)]})
    made = Lake(folder).create("canaries", rows.schema, [rows])
    caches = Caches(server, folder / "logs")
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL)) as tap:
        tap.setsockopt(socket.SOL_SOCKET, _BUFFER_FORCE, _BUFFER)
        source = ["--metadata", made.metadata_location, "--filter", f"text != '{LOAD_FILTER}'"]
        cache = caches.start(source, mode="cluster", env=readers.env if mode == "TLS" else None)
        try:
            cache.wait("Ready")
            ids = epoch(cache, readers, folder, token, mode)
        finally:
            cache.stop()
        canaries = {"row": ROW, "token": token.rpartition(".")[2], "filter": FILTER, "cache's filter": LOAD_FILTER}
        seen, count = dict.fromkeys(canaries, 0), 0
        for packet in packets(tap):
            count += len(packet)
            for name, text in canaries.items():
                seen[name] += text.encode() in packet
    print(json.dumps({"epoch": sorted(ids) == list(range(ROWS)), "bytes": count, "seen": seen}))


if __name__ == "__main__":
    main()
