# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Throughput of many clients of one data node, and how evenly it is shared."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchlib import h2load
from benchlib.clients import Clients
from benchlib.process import Server, Serving
from benchlib.sample import Sample, Setup
from benchlib.subjects import OURS, PYARROW, TCP, Request, loader, shard, start, start_ours
from benchlib.tables import Table

TABLE = "tokens"
MANY, FEW = "64 clients", "2 clients"
MANY_LOADERS, FEW_LOADERS = "64 loaders", "2 loaders"
MANY_PLAIN, FEW_PLAIN = "64 of h2load", "2 of h2load"
MANY_BARE, FEW_BARE = "64 of TCP", "2 of TCP"
# Each client reads one of this many equal shares of the table, for many and for few clients alike, so that connecting
# and starting have the same weight in both.
SHARES = 2
# h2load: number of shares, of which each call reads one, and number of calls.
PLAIN_SHARES, PLAIN_CALLS = 4, 64


@dataclass(frozen=True)
class Crowd:
    """Clients that start together and read the same amount each."""

    subject: str
    server: Serving
    case: str
    asked: list[dict[str, Any]]
    # Number of repetitions, chosen so that few clients read as many bytes as many clients do.
    times: int = 1


def crowd(server: Path, table: Table, setup: Setup, step: Callable[[str], None]) -> Iterator[Sample]:
    """Measures many and few clients of our server (with pyarrow and our loader), of another server and of plain TCP;
    then h2load."""
    step(f"{table.name}: starting {OURS} with one node, {PYARROW}, {TCP} and {MANY}")
    with ExitStack() as stack:
        running = stack.enter_context(start_ours(server, 1, table, setup.logs, "crowd"))
        other = start(PYARROW, table, setup)
        stack.enter_context(other.server)
        floor = start(TCP, table, setup)
        stack.enter_context(floor.server)
        pool = stack.enter_context(Clients(64))
        ask = shard(running)
        crowds = [
            Crowd(OURS, running, MANY, _shares(ask, 64)),
            Crowd(OURS, running, FEW, _shares(ask, 2), times=64 // 2),
            Crowd(OURS, running, MANY_LOADERS, _shares(loader(running, table), 64)),
            Crowd(OURS, running, FEW_LOADERS, _shares(loader(running, table), 2), times=64 // 2),
            Crowd(PYARROW, other.server, MANY, _shares(other.request, 64)),
            Crowd(TCP, floor.server, MANY_BARE, _shares(floor.request, 64)),
            Crowd(TCP, floor.server, FEW_BARE, _shares(floor.request, 2), times=64 // 2),
        ]
        if not h2load.installed():
            step(f"{table.name}: no lines of {h2load.PROGRAM}, which is not installed (Debian's nghttp2-client)")
        step(f"{table.name}: {MANY}, warm-up")
        for warm in (ask, loader(running, table)):
            pool.read([warm(i, 10 * 64) for i in range(64)])
        for number in range(1, setup.rounds + 1):
            step(f"{table.name}: {MANY}, round {number} of {setup.rounds}")
            for one in crowds:
                yield _read(one, pool, table, number)
            if h2load.installed():
                yield from (_plain(running, case, table, number, setup.logs) for case in (MANY_PLAIN, FEW_PLAIN))


def _shares(ask: Request, clients: int) -> list[dict[str, Any]]:
    return [ask(i % SHARES, SHARES) for i in range(clients)]


def _read(one: Crowd, pool: Clients, table: Table, number: int) -> Sample:
    before = one.server.cpu()
    got = [pool.read(one.asked) for _ in range(one.times)]
    want = len(one.asked) // SHARES * table.rows
    if one.subject != TCP and any(g.rows != want for g in got):  # plain TCP reports bytes only
        raise RuntimeError(f"{one.case} of {one.subject}: {[g.rows for g in got]} rows came, want {want} each time")
    walls = [a["wall"] for a in got[-1].answers]
    return Sample(
        measure="crowd",
        table=table.name,
        subject=one.subject,
        case=one.case,
        round=number,
        gigabytes=sum(g.bytes for g in got) / 1e9,
        wall=sum(g.wall for g in got),
        first=min(walls),
        last=max(walls),
        server_cpu=one.server.cpu() - before,
        client_cpu=sum(g.cpu for g in got),
        load_average=os.getloadavg()[0],
    )


def _plain(server: Server, case: str, table: Table, number: int, folder: Path) -> Sample:
    share = table.rows // PLAIN_SHARES * table.arrow_bytes // table.rows
    before = server.cpu()
    path = ["0", str(PLAIN_SHARES)]
    done = h2load.read(server.uri, path, int(case.split()[0]), PLAIN_CALLS, share, folder)
    return Sample(
        measure="crowd",
        table=table.name,
        subject=OURS,
        case=case,
        round=number,
        gigabytes=PLAIN_CALLS * share / 1e9,
        wall=done.wall,
        server_cpu=server.cpu() - before,
        client_cpu=done.cpu,
        load_average=os.getloadavg()[0],
    )
