# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The compared servers: how to start each one, and the requests to read it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchlib.network import LOOPBACK, Place
from benchlib.process import Server, Serving
from benchlib.sample import Setup
from benchlib.tables import Table
from benchlib.trainer_cache import TrainerCache

if TYPE_CHECKING:
    from benchlib.certificate import Certificate

OURS = "datacache"
FLIGHT_WRITER = "arrow-go flight.Writer"
PYARROW = "pyarrow (C++) server"
TCP = "plain TCP copy"
GRPC_GO = "our rows over grpc-go"
TLS = "our rows over TLS"
GRPC_TLS = "grpc-go over TLS"
PYARROW_TLS = "pyarrow (C++) over TLS"
TRAINER = "Trainer's data cache"
LOADER = "our loader"
LOADER_TLS = "our loader over TLS"
# References for our server with TLS.
TLS_REFERENCES = (PYARROW_TLS, GRPC_TLS, OURS)
# Subjects with TLS: measured on one table with one client.
ENCRYPTED = (TLS, GRPC_TLS, PYARROW_TLS)
REFERENCES = (PYARROW, TRAINER, GRPC_GO, FLIGHT_WRITER, TCP, *ENCRYPTED)
# Subjects that are our server.
OWN = (OURS, GRPC_GO, TLS, GRPC_TLS)
TLS_TABLE = "tokens"

GLOBAL_BATCH = 1024
_PYARROW = (sys.executable, "-P", str(Path(__file__).with_name("pyarrow_server.py")))

# Makes client.py's request for part `index` of `total` equal parts of the table.
Request = Callable[[int, int], dict[str, Any]]


@dataclass(frozen=True)
class Subject:
    """A running server, and the requests for parts of the table. Whoever started it stops it. roots: PEM for TLS."""

    name: str
    server: Serving
    request: Request
    roots: str = ""


def available(name: str, setup: Setup) -> bool:
    """Whether the programs of a subject are built; those of references in this repository always are."""
    if name in OWN:
        return setup.server is not None
    return name != TRAINER or setup.trainer is not None


def start_ours(
    server: Path,
    nodes: int,
    table: Table,
    logs: Path,
    variant: str = "h2",
    flags: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    place: Place = LOOPBACK,
) -> Server:
    """Starts `cacheserver local` on free ports and waits until all rows are in memory. variant is part of its log's
    name."""
    command = [*place.before, str(server), "local", "--metadata", table.metadata, "--nodes", str(nodes)]
    command += ["--listen", f"{place.host}:0", "--http", "127.0.0.1:0", *flags]
    log = logs / f"{table.name}-cacheserver-{variant}.log"
    return Server(OURS, command, log, environment=environment)


def start(name: str, table: Table, setup: Setup) -> Subject:
    """Starts the subject of this name with the table's rows in memory. Its programs must be `available`."""
    if name == TRAINER and setup.trainer:
        cache = TrainerCache(name, setup.trainer, table, setup.logs)
        return Subject(name, cache, shard(cache))
    if name in OWN and setup.server:
        transport = "grpc" if name in (GRPC_GO, GRPC_TLS) else "h2"
        flags, roots, variant = ["--transport", transport], "", transport
        if name in ENCRYPTED:
            variant = f"{transport}-tls"
            certificate = certify(setup.logs / variant)
            flags, roots = [*flags, *certificate.flags], certificate.roots
        server = start_ours(setup.server, setup.nodes, table, setup.logs, variant, flags)
        return Subject(name, server, shard(server, roots), roots)
    if name == PYARROW:
        return start_pyarrow(table, setup.logs)
    rows = str(table.chunk_rows)
    log = setup.logs / f"{table.name}-{name.split(maxsplit=1)[0]}.log"
    if name == PYARROW_TLS:
        certificate = certify(setup.logs / "pyarrow-tls")
        server = Server(name, [*_PYARROW, "--tls", *certificate.files, rows, *table.files], log)
        return Subject(name, server, part(name, server, certificate.roots))
    program = {
        FLIGHT_WRITER: [str(setup.tools / "flightwriter"), "-batch-rows", rows],
        TCP: [str(setup.tools / "tcpcopy"), "-batch-rows", rows],
    }[name]
    server = Server(name, [*program, *table.files], log)
    return Subject(name, server, part(name, server))


def start_pyarrow(table: Table, logs: Path, place: Place = LOOPBACK) -> Subject:
    """The C++ server."""
    command = [*place.before, *_PYARROW, "--host", place.host, str(table.chunk_rows), *table.files]
    server = Server(PYARROW, command, logs / f"{table.name}-pyarrow-{place.host}.log")
    return Subject(PYARROW, server, part(PYARROW, server))


def certify(folder: Path) -> Certificate:
    """Creates a loopback certificate in a folder."""
    from benchlib.certificate import Certificate  # imported here, as the environment of bench-loader has no trustme

    folder.mkdir(exist_ok=True)
    return Certificate(folder)


def shard(server: Serving, roots: str = "") -> Request:
    """Requests for sequential streams of our server or Trainer's (PATH descriptor). roots: PEM for TLS."""
    tls = {"roots": roots} if roots else {}
    return lambda index, total: {
        "reader": "dataset",
        "uri": server.uri,
        "path": [str(index), str(total)],
        **tls,
    }


def epoch(server: Serving, clump: int, number: int) -> Request:
    """Requests for a rank's part of our shuffled epoch: a CMD descriptor."""
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


def loader(server: Serving, table: Table, roots: str = "") -> Request:
    """Requests for a rank's rows, read unshuffled by our loader. roots: PEM for TLS."""
    tls = {"roots": roots} if roots else {}
    return lambda index, total: {
        "reader": "loader",
        "uri": server.uri,
        "rank": index,
        "world": total,
        "global_batch": GLOBAL_BATCH,
        "row_bytes": table.arrow_bytes / table.rows,
        **tls,
    }


def part(name: str, server: Server, roots: str = "") -> Request:
    """Requests for a part of a reference server's batches. roots: PEM for a server with TLS."""
    reader = "tcp" if name == TCP else "ticket"
    tls = {"roots": roots} if roots else {}
    return lambda index, total: {
        "reader": reader,
        "uri": server.uri,
        "ticket": f"{index}/{total}",
        **tls,
    }
