# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The measurements of a table: load and memory, streams, shuffled epochs.

In every round each subject has its turn, so that what else the machine does hits all of them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchlib.clients import Clients
from benchlib.process import Server, run
from benchlib.subjects import (
    GRPC_GO,
    OURS,
    REFERENCES,
    TCP,
    Subject,
    epoch,
    part,
    shard,
    start_ours,
    start_reference,
)
from benchlib.tables import Table

PQARROW = "pqarrow record reader"
PQARROW_KEPT = "pqarrow, batches kept"
# What the load is held against, and pqread's flags for it.
READERS = {PQARROW: [], PQARROW_KEPT: ["-keep"]}
SEQUENTIAL = "sequential"
CLUMPS = (1, 64)

# Resident memory is read this long after the server said that it is ready.
SETTLE_SECONDS = 3.0
# A server's CPU is read this long after the last client is done, so that its own tail counts.
TAIL_SECONDS = 0.05


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One measurement: CPU in seconds, memory in bytes, gigabytes of 1e9 bytes of Arrow.

    case is the number of clients or the kind of epoch.
    """

    measure: str
    table: str
    subject: str
    round: int
    gigabytes: float
    wall: float
    server_cpu: float
    case: str = ""
    client_cpu: float = 0.0
    peak_rss: int = 0
    resident_rss: int = 0
    load_average: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What to measure, with what. server is None for the references alone."""

    server: Path | None
    tools: Path
    logs: Path
    only: list[str]
    clients: list[int]
    nodes: int
    rounds: int

    def wants(self, *measures: str) -> bool:
        return any(m in self.only for m in measures)


class Bench:
    """Measures one table after the other. `step` is told what comes next."""

    def __init__(self, setup: Setup, pool: Clients, step: Callable[[str], None]) -> None:
        self._setup, self._pool, self._step = setup, pool, step

    def table(self, table: Table) -> Iterator[Sample]:
        """All samples of a table. Its server processes live no longer than this."""
        setup = self._setup
        with ExitStack() as stack:
            warm_page_cache(table.files)
            if setup.wants("load", "memory"):
                yield from self._load(table)
            subjects: dict[str, Subject] = {}
            if setup.server and setup.wants("stream", "shuffle"):
                self._step(f"{table.name}: starting {OURS}")
                server = stack.enter_context(start_ours(setup.server, setup.nodes, table, setup.logs))
                subjects[OURS] = Subject(OURS, server, shard(server))
            if setup.wants("stream"):
                for name in REFERENCES:
                    self._step(f"{table.name}: starting {name}")
                    if name != GRPC_GO:
                        server = stack.enter_context(start_reference(name, setup.tools, table, setup.logs))
                        subjects[name] = Subject(name, server, part(name, server))
                    elif setup.server:
                        server = stack.enter_context(start_ours(setup.server, setup.nodes, table, setup.logs, "grpc"))
                        subjects[name] = Subject(name, server, shard(server))
                yield from self._stream(table, list(subjects.values()))
            if OURS in subjects and setup.wants("shuffle"):
                yield from self._shuffle(table, subjects[OURS].server)

    def _load(self, table: Table) -> Iterator[Sample]:
        for number in range(self._setup.rounds + 1):
            label = f"round {number} of {self._setup.rounds}" if number else "warm-up"
            samples = []
            if self._setup.server:
                self._step(f"{table.name}: load, {OURS}, {label}")
                samples.append(self._load_ours(self._setup.server, table, number))
            for name, flags in READERS.items():
                self._step(f"{table.name}: load, {name}, {label}")
                samples.append(self._load_reference(table, number, name, flags))
            if number:
                yield from samples

    def _load_ours(self, server: Path, table: Table, number: int) -> Sample:
        with start_ours(server, self._setup.nodes, table, self._setup.logs) as running:
            time.sleep(SETTLE_SECONDS)
            return Sample(
                measure="load",
                table=table.name,
                subject=OURS,
                round=number,
                gigabytes=table.gigabytes,
                wall=running.start_wall,
                server_cpu=running.start_cpu,
                peak_rss=running.memory("VmHWM"),
                resident_rss=running.memory("VmRSS"),
                load_average=os.getloadavg()[0],
            )

    def _load_reference(self, table: Table, number: int, name: str, flags: list[str]) -> Sample:
        done = run([str(self._setup.tools / "pqread"), *flags, *table.files])
        if int(done.output) != table.rows:
            raise RuntimeError(f"pqread: {done.output.strip()} rows of {table.name}, not {table.rows}")
        return Sample(
            measure="load",
            table=table.name,
            subject=name,
            round=number,
            gigabytes=table.gigabytes,
            wall=done.wall,
            server_cpu=done.cpu,
            peak_rss=done.peak_rss,
            load_average=os.getloadavg()[0],
        )

    def _stream(self, table: Table, subjects: list[Subject]) -> Iterator[Sample]:
        self._step(f"{table.name}: stream, warm-up")
        for subject in subjects:
            self._read(("stream", "warm-up", 0), table, subject, max(self._setup.clients))
        for clients in self._setup.clients:
            case = f"{clients} client{'s' if clients > 1 else ''}"
            for number in range(1, self._setup.rounds + 1):
                self._step(f"{table.name}: stream, {case}, round {number} of {self._setup.rounds}")
                for subject in subjects:
                    yield self._read(("stream", case, number), table, subject, clients)

    def _shuffle(self, table: Table, server: Server) -> Iterator[Sample]:
        self._step(f"{table.name}: shuffled epoch, warm-up")
        self._read(("shuffle", "warm-up", 0), table, Subject(OURS, server, epoch(server, 1, 0)), 1)
        for number in range(1, self._setup.rounds + 1):
            self._step(f"{table.name}: shuffled epoch, round {number} of {self._setup.rounds}")
            requests = {SEQUENTIAL: shard(server)}
            requests |= {f"clump {c}": epoch(server, c, number) for c in CLUMPS}
            for case, request in requests.items():
                subject = Subject(OURS, server, request)
                yield self._read(("shuffle", case, number), table, subject, 1)

    def _read(self, of: tuple[str, str, int], table: Table, subject: Subject, clients: int) -> Sample:
        """Reads the whole table once, split over the clients; of is measure, case and round."""
        measure, case, number = of
        before = subject.server.cpu()
        got = self._pool.read([subject.request(i, clients) for i in range(clients)])
        time.sleep(TAIL_SECONDS)
        used = subject.server.cpu() - before
        whole = got.bytes >= table.arrow_bytes and (subject.name == TCP or got.rows == table.rows)
        if not whole:
            raise RuntimeError(
                f"{subject.name} sent {got.rows} rows, {got.bytes} bytes of {table.name};"
                f" it has {table.rows} and {table.arrow_bytes}"
            )
        return Sample(
            measure=measure,
            table=table.name,
            case=case,
            subject=subject.name,
            round=number,
            gigabytes=table.gigabytes,
            wall=got.wall,
            server_cpu=used,
            client_cpu=got.cpu,
            load_average=os.getloadavg()[0],
        )


def warm_page_cache(files: Iterable[str]) -> None:
    """Reads every file once, so that no measurement waits for the disk."""
    for path in files:
        with Path(path).open("rb") as file:
            while file.read(1 << 24):
                pass


def expected_seconds(setup: Setup, gigabytes: float) -> float:
    """What a table of this size is expected to take in all, on two cores."""
    ours = 1 if setup.server else 0
    seconds = 0.0
    if setup.wants("load", "memory"):
        seconds += (setup.rounds + 1) * (ours * (2 * gigabytes + SETTLE_SECONDS) + 2.5 * gigabytes)
    if setup.wants("stream", "shuffle"):
        seconds += ours * 2 * gigabytes
    if setup.wants("stream"):
        turns = len(setup.clients) * setup.rounds
        seconds += 7.5 * gigabytes + (3 + ours) * (gigabytes + turns * (gigabytes + 0.1))
    if setup.wants("shuffle"):
        seconds += ours * (2 + setup.rounds * (1 + 2 * len(CLUMPS))) * gigabytes
    return seconds
