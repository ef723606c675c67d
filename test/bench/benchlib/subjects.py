# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The servers that are compared: how each is started and what a client asks it for."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchlib.process import Server
from benchlib.tables import Table

OURS = "datacache"
FLIGHT_WRITER = "arrow-go flight.Writer"
PYARROW = "pyarrow (C++) server"
TCP = "plain TCP copy"
GRPC_GO = "our rows over grpc-go"
REFERENCES = (PYARROW, GRPC_GO, FLIGHT_WRITER, TCP)

GLOBAL_BATCH = 1024

# What client.py is to read as part `index` of `total` equal parts of the table.
Request = Callable[[int, int], dict[str, Any]]


@dataclass(frozen=True)
class Subject:
    """A running server, and how to ask it for a part of the table."""

    name: str
    server: Server
    request: Request


def start_ours(server: Path, nodes: int, table: Table, logs: Path, transport: str = "h2") -> Server:
    """`cacheserver local` on free ports of the loopback; returns when every row is in memory."""
    command = [str(server), "local", "--metadata", table.metadata, "--nodes", str(nodes)]
    command += ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--transport", transport]
    return Server(OURS, command, logs / f"{table.name}-cacheserver-{transport}.log")


def start_reference(name: str, tools: Path, table: Table, logs: Path) -> Server:
    """A reference server with the table's rows in batches of about 4 MiB."""
    rows = str(table.chunk_rows)
    program = {
        FLIGHT_WRITER: [str(tools / "flightwriter"), "-batch-rows", rows],
        TCP: [str(tools / "tcpcopy"), "-batch-rows", rows],
        PYARROW: [sys.executable, "-P", str(Path(__file__).with_name("pyarrow_server.py")), rows],
    }[name]
    log = logs / f"{table.name}-{name.split(maxsplit=1)[0]}.log"
    return Server(name, [*program, *table.files], log)


def shard(server: Server) -> Request:
    """Our sequential stream: a PATH descriptor."""
    return lambda index, total: {
        "reader": "dataset",
        "uri": server.uri,
        "path": [str(index), str(total)],
    }


def epoch(server: Server, clump: int, number: int) -> Request:
    """A rank's part of our shuffled epoch: a CMD descriptor."""
    return lambda index, total: {
        "reader": "dataset",
        "uri": server.uri,
        "command": {
            "v": 1,
            "kind": "epoch",
            "seed": 7,
            "epoch": number,
            "shuffle": True,
            "clump": clump,
            "global_batch": GLOBAL_BATCH,
            "tail": "keep",
            "rank": index,
            "world": total,
            "worker": 0,
            "workers": 1,
            "start_step": 0,
        },
    }


def part(name: str, server: Server) -> Request:
    """A part of a reference server's batches."""
    reader = "tcp" if name == TCP else "ticket"
    return lambda index, total: {
        "reader": reader,
        "uri": server.uri,
        "ticket": f"{index}/{total}",
    }
