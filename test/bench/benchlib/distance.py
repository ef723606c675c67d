# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Streams over an emulated network with several round-trip times."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchlib.clients import Clients
from benchlib.network import Network, NoNetworkError
from benchlib.sample import Sample, Setup
from benchlib.subjects import GRPC_GO, LOADER, OURS, Request, Subject, loader, shard, start_ours, start_pyarrow
from benchlib.tables import Table

TABLE = "tokens"
# A server's CPU time is read this long after the last client is done.
TAIL_SECONDS = 0.05
PAUSE_SECONDS = 2.0
LOSS = 0.001


@dataclass(frozen=True)
class Case:
    """A round-trip time in milliseconds, and a number of clients that each read one of `shares` equal shares of the
    table."""

    milliseconds: float
    clients: int
    shares: int
    what: str = ""
    pause: float = 0.0
    loss: float = 0.0

    @property
    def name(self) -> str:
        """The case's name in the table."""
        return f"{self.milliseconds:g} ms, {self.what or self.clients}"


# Number of shares by round-trip time, so that a read takes about a second. Slow cases come last, as a run may be
# stopped.
_SHARES = {0.0: 2, 0.5: 2, 1.0: 2, 5.0: 3, 20.0: 6}
CASES = [
    *(Case(ms, n, shares * n) for ms, shares in _SHARES.items() for n in (1, 2)),
    Case(20.0, 1, 6, "pause", pause=PAUSE_SECONDS),
    Case(20.0, 8, 32),
    *(Case(ms, 64, 128) for ms in _SHARES),
    Case(20.0, 1, 24, "loss", loss=LOSS),
]


def distance(server: Path, table: Table, setup: Setup, step: Callable[[str], None]) -> Iterator[Sample]:
    """Measures our server, our server with grpc-go, the C++ server, and our loader. Reports if no network can be
    created."""
    with ExitStack() as stack:
        try:
            network = stack.enter_context(Network(setup.tools))
        except NoNetworkError as error:
            step(f"{table.name}: no lines of the network, which can't be made here: {error}")
            return
        step(f"{table.name}: starting the network, the servers and 64 clients")
        subjects = []
        for name, transport in ((OURS, "h2"), (GRPC_GO, "grpc")):
            flags = ["--transport", transport]
            running = start_ours(server, 1, table, setup.logs, f"network-{transport}", flags, place=network.servers)
            stack.enter_context(running)
            subjects.append(Subject(name, running, shard(running)))
            if name == OURS:
                subjects.append(Subject(LOADER, running, loader(running, table)))
        other = start_pyarrow(table, setup.logs, network.servers)
        stack.enter_context(other.server)
        subjects.append(other)
        pool = stack.enter_context(Clients(64, network.clients))
        network.set(0.0)
        for subject in subjects:  # a warm-up read loads code and grows heaps
            pool.read([subject.request(i, 64) for i in range(64)])
        for case in CASES:
            network.set(case.milliseconds / 1e3, case.loss)
            for number in range(setup.rounds + 1):
                step(f"{table.name}: {case.name} over the network, round {number} of {setup.rounds}")
                order = subjects if number % 2 else subjects[::-1]
                for subject in order:
                    if subject.name != LOADER or not case.pause:
                        sample = _read(case, subject, pool, table, number)
                        if number:
                            yield sample


def _read(case: Case, subject: Subject, pool: Clients, table: Table, number: int) -> Sample:
    asked = [_paused(subject.request, case)(i % case.shares, case.shares) for i in range(case.clients)]
    before = subject.server.cpu()
    got = pool.read(asked)
    time.sleep(TAIL_SECONDS)
    walls = [a["wall"] for a in got.answers]
    reads = 2 if case.pause else 1  # only the last read was timed
    return Sample(
        measure="network",
        table=table.name,
        case=case.name,
        subject=subject.name,
        round=number,
        gigabytes=got.bytes / 1e9,
        wall=max(walls),
        first=min(walls),
        last=max(walls),
        server_cpu=(subject.server.cpu() - before) / reads,
        client_cpu=got.cpu / reads,
        load_average=os.getloadavg()[0],
    )


def _paused(request: Request, case: Case) -> Request:
    if not case.pause:
        return request
    return lambda index, total: request(index, total) | {"pause": case.pause}
