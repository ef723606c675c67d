# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The measurements of a table: load and memory, streams, shuffled epochs.

Every round measures every subject once, in a different order each time, so that other load on the machine and memory
left from earlier measurements affect all subjects alike.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

from benchlib import crowd, distance, latency
from benchlib.clients import Clients
from benchlib.process import Serving, run
from benchlib.sample import Sample, Setup
from benchlib.subjects import (
    ENCRYPTED,
    LOADER_TLS,
    OURS,
    REFERENCES,
    TCP,
    TLS,
    TLS_TABLE,
    TRAINER,
    Subject,
    available,
    epoch,
    loader,
    shard,
    start,
)
from benchlib.tables import Table

T = TypeVar("T")

PQARROW = "pqarrow record reader"
PQARROW_KEPT = "pqarrow, batches kept"
# Subjects that our load is compared with, and pqread's flags for each.
READERS = {PQARROW: [], PQARROW_KEPT: ["-keep"]}
SEQUENTIAL = "sequential"
CLUMPS = (1, 64)

# Number of times that a measurement reads the table. A single read takes about half a second, in which other guests of
# the host can slow everything down by half, and its first messages meet heaps left by the previous server.
READS = 3
# The cost of starting a program is the minimum over this many runs that read nothing.
STARTS = 5
# Resident memory is read this long after the server is ready.
SETTLE_SECONDS = 3.0
# A server's CPU time is read this long after the last client is done, to include its remaining work.
TAIL_SECONDS = 0.05


class Bench:
    """Measures one table after the other. `step` is called with a description of the next step."""

    def __init__(self, setup: Setup, pool: Clients, step: Callable[[str], None]) -> None:
        self._setup, self._pool, self._step = setup, pool, step

    def table(self, table: Table) -> Iterator[Sample]:
        """Yields all samples of a table; stops the table's servers at the end."""
        setup = self._setup
        with ExitStack() as stack:
            warm_page_cache(table.files)
            if setup.wants("load", "memory"):
                yield from self._load(table)
            subjects = {s.name: s for s in self._start(table, stack)}
            if setup.wants("stream"):
                yield from self._stream(table, list(subjects.values()))
            if setup.wants("latency") and table.name in latency.TABLES:
                timed = [s for s in subjects.values() if s.name in latency.SUBJECTS]
                yield from latency.latency(table, timed, self._pool, setup.rounds, self._step)
            if OURS in subjects and setup.wants("shuffle"):
                yield from self._shuffle(table, subjects[OURS].server)
        if setup.server and setup.wants("crowd") and table.name == crowd.TABLE:
            yield from crowd.crowd(setup.server, table, setup, self._step)
        if setup.server and setup.wants("network") and table.name == distance.TABLE:
            yield from distance.distance(setup.server, table, setup, self._step)

    def _start(self, table: Table, stack: ExitStack) -> Iterator[Subject]:
        """Starts the servers to measure on a table; the stack stops them."""
        timed = self._setup.wants("latency") and table.name in latency.TABLES
        names = [OURS] if self._setup.wants("shuffle") else []
        if self._setup.wants("stream"):
            names = [OURS, *REFERENCES]
        elif timed:
            names = [*latency.SUBJECTS]
        for name in names:
            if not available(name, self._setup) or (name in ENCRYPTED and table.name != TLS_TABLE):
                continue
            self._step(f"{table.name}: starting {name}")
            subject = start(name, table, self._setup)
            stack.enter_context(subject.server)
            yield subject

    def _load(self, table: Table) -> Iterator[Sample]:
        for number in range(self._setup.rounds + 1):
            label = f"round {number} of {self._setup.rounds}" if number else "warm-up"
            samples = []
            for name in (OURS, TRAINER):
                if not available(name, self._setup):
                    continue
                self._step(f"{table.name}: load, {name}, {label}")
                samples.append(self._load_cache(table, number, name))
            for name, flags in READERS.items():
                self._step(f"{table.name}: load, {name}, {label}")
                samples.append(self._load_reference(table, number, name, flags))
            if number:
                yield from samples

    def _program_start(self, name: str) -> tuple[float, float]:
        """Wall and CPU seconds of our server's start before it reads anything; not subtracted for Trainer's."""
        if name != OURS or not self._setup.server:
            return 0.0, 0.0
        runs = [run([str(self._setup.server), "version"]) for _ in range(STARTS)]
        return min(r.wall for r in runs), min(r.cpu for r in runs)

    def _load_cache(self, table: Table, number: int, name: str) -> Sample:
        wall, cpu = self._program_start(name)
        if wall:
            self._step(f"{table.name}: a start of {name} takes {wall:.3f} s, {cpu:.3f} CPU-s, which are not counted")
        with start(name, table, self._setup).server as running:
            time.sleep(SETTLE_SECONDS)
            return Sample(
                measure="load",
                table=table.name,
                subject=name,
                round=number,
                gigabytes=table.gigabytes,
                wall=running.start_wall - wall,
                server_cpu=running.start_cpu - cpu,
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
        by_loader = [Subject(LOADER_TLS, s.server, loader(s.server, table, s.roots)) for s in subjects if s.name == TLS]
        subjects = [*subjects, *by_loader]
        self._step(f"{table.name}: stream, warm-up")
        for subject in subjects:
            self._read(("stream", "warm-up", 0), table, subject, max(self._setup.clients))
        for clients in self._setup.clients:
            case = f"{clients} client{'s' if clients > 1 else ''}"
            for number in range(1, self._setup.rounds + 1):
                self._step(f"{table.name}: stream, {case}, round {number} of {self._setup.rounds}")
                for subject in _shuffled(subjects, f"{table.name} {case} {number}"):
                    if subject.name not in (*ENCRYPTED, LOADER_TLS) or clients == 1:
                        yield self._read(("stream", case, number), table, subject, clients)

    def _shuffle(self, table: Table, server: Serving) -> Iterator[Sample]:
        self._step(f"{table.name}: shuffled epoch, warm-up")
        self._read(("shuffle", "warm-up", 0), table, Subject(OURS, server, epoch(server, 1, 0)), 1)
        for number in range(1, self._setup.rounds + 1):
            self._step(f"{table.name}: shuffled epoch, round {number} of {self._setup.rounds}")
            requests = {SEQUENTIAL: shard(server)}
            requests |= {f"clump {c}": epoch(server, c, number) for c in CLUMPS}
            for case in _shuffled(requests, f"{table.name} {number}"):
                subject = Subject(OURS, server, requests[case])
                yield self._read(("shuffle", case, number), table, subject, 1)

    def _read(self, of: tuple[str, str, int], table: Table, subject: Subject, clients: int) -> Sample:
        """Reads the whole table READS times, divided among the clients. of: (measure, case, round)."""
        measure, case, number = of
        before = subject.server.cpu()
        wall = cpu = 0.0
        for _ in range(READS):
            got = self._pool.read([subject.request(i, clients) for i in range(clients)])
            wall, cpu = wall + got.wall, cpu + got.cpu
            whole = got.bytes >= table.arrow_bytes and (subject.name == TCP or got.rows == table.rows)
            if not whole:
                raise RuntimeError(
                    f"{subject.name} sent {got.rows} rows, {got.bytes} bytes of {table.name};"
                    f" it has {table.rows} and {table.arrow_bytes}"
                )
        time.sleep(TAIL_SECONDS)
        used = subject.server.cpu() - before
        return Sample(
            measure=measure,
            table=table.name,
            case=case,
            subject=subject.name,
            round=number,
            gigabytes=READS * table.gigabytes,
            wall=wall,
            server_cpu=used,
            client_cpu=cpu,
            load_average=os.getloadavg()[0],
        )


def _shuffled(subjects: Iterable[T], seed: str) -> list[T]:
    """The subjects in random order for a round."""
    order = list(subjects)
    random.Random(seed).shuffle(order)
    return order


def warm_page_cache(files: Iterable[str]) -> None:
    """Reads every file once, so that no measurement reads from disk."""
    for path in files:
        with Path(path).open("rb") as file:
            while file.read(1 << 24):
                pass


def expected_seconds(setup: Setup, table: Table) -> float:
    """Estimated total time for a table on two idle cores."""
    ours, rounds, gigabytes = int(available(OURS, setup)), setup.rounds, table.gigabytes
    caches = ours + int(available(TRAINER, setup))
    seconds = 0.0
    if setup.wants("load", "memory"):
        seconds += (rounds + 1) * (caches * (1.5 * gigabytes + SETTLE_SECONDS) + 3.5 * gigabytes)
    if setup.wants("stream", "shuffle", "latency"):
        seconds += ours * 1.5 * gigabytes
    if setup.wants("stream"):
        turns = len(setup.clients) * rounds
        seconds += 7.5 * gigabytes + (3 + caches) * (gigabytes + turns * (0.7 * READS * gigabytes + 0.1))
    if setup.wants("shuffle"):
        seconds += ours * (2 + 1.8 * READS * rounds) * gigabytes
    if setup.wants("latency") and table.name in latency.TABLES:
        seconds += 1.5 * rounds
    if setup.wants("crowd") and table.name == crowd.TABLE:
        seconds += ours * (20 + 100 * rounds * gigabytes)
    if setup.wants("network") and table.name == distance.TABLE:
        seconds += ours * (60 + 190 * (rounds + 1) * gigabytes)
    return seconds
