# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Many clients of one data node: what they get together, and whether all of them get the same."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchlib.clients import Clients
from benchlib.process import Server
from benchlib.sample import Sample, Setup
from benchlib.subjects import OURS, shard, start_ours
from benchlib.tables import Table

TABLE = "tokens"
MANY, FEW = "64 clients", "2 clients"
# Each of the many reads one of this many equal shares of the table; each of the few reads all of it.
SHARES = 10


def crowd(server: Path, table: Table, setup: Setup, step: Callable[[str], None]) -> Iterator[Sample]:
    """Many and few clients, in turns. Those of a sample start together and read as much each."""
    step(f"{table.name}: starting {OURS} with one node and {MANY}")
    with start_ours(server, 1, table, setup.logs, "crowd") as running, Clients(64) as pool:
        ask = shard(running)
        requests = {MANY: [ask(i % SHARES, SHARES) for i in range(64)], FEW: [ask(0, 1)] * 2}
        step(f"{table.name}: {MANY}, warm-up")
        pool.read([ask(i, 64 * SHARES) for i in range(64)])
        for number in range(1, setup.rounds + 1):
            step(f"{table.name}: {MANY}, round {number} of {setup.rounds}")
            for case, asked in requests.items():
                yield _read(running, pool, table, case, number, asked)


def _read(server: Server, pool: Clients, table: Table, case: str, number: int, asked: list[dict[str, Any]]) -> Sample:
    before = server.cpu()
    got = pool.read(asked)
    walls = [a["wall"] for a in got.answers]
    return Sample(
        measure="crowd",
        table=table.name,
        subject=OURS,
        case=case,
        round=number,
        gigabytes=got.bytes / 1e9,
        wall=got.wall,
        first=min(walls),
        last=max(walls),
        server_cpu=server.cpu() - before,
        client_cpu=got.cpu,
        load_average=os.getloadavg()[0],
    )
