# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The measurements of a table: load and memory, streams, shuffled epochs.

In every round each subject has its turn, in another order each time, so that what else the machine does, and what
the turn before left in the clients' heaps, hits all of them.
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
    OURS,
    REFERENCES,
    TCP,
    TLS_TABLE,
    TRAINER,
    Subject,
    available,
    epoch,
    shard,
    start,
)
from benchlib.tables import Table

T = TypeVar("T")

PQARROW = "pqarrow record reader"
PQARROW_KEPT = "pqarrow, batches kept"
# What the load is held against, and pqread's flags for it.
READERS = {PQARROW: [], PQARROW_KEPT: ["-keep"]}
SEQUENTIAL = "sequential"
CLUMPS = (1, 64)

# A turn of a stream or an epoch reads the table so often. A single read takes half a second, as long as the host's
# other guests may slow everything by half, and its first messages find clients' heaps as the server before left them.
READS = 3
# The cheapest of so many runs of a program that reads nothing is what its start costs.
STARTS = 5
# Resident memory is read this long after the server said that it is ready.
SETTLE_SECONDS = 3.0
# A server's CPU is read this long after the last client is done, so that its own tail counts.
TAIL_SECONDS = 0.05


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
        """The servers that are measured on a table, until the stack ends them."""
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
        """Wall and CPU seconds that our server takes before it reads anything; of Trainer's nothing is taken off."""
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
        self._step(f"{table.name}: stream, warm-up")
        for subject in subjects:
            self._read(("stream", "warm-up", 0), table, subject, max(self._setup.clients))
        for clients in self._setup.clients:
            case = f"{clients} client{'s' if clients > 1 else ''}"
            for number in range(1, self._setup.rounds + 1):
                self._step(f"{table.name}: stream, {case}, round {number} of {self._setup.rounds}")
                for subject in _shuffled(subjects, f"{table.name} {case} {number}"):
                    if subject.name not in ENCRYPTED or clients == 1:
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
        """Reads the whole table READS times, split over the clients; of is measure, case and round."""
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
    """The subjects in the order of a round."""
    order = list(subjects)
    random.Random(seed).shuffle(order)
    return order


def warm_page_cache(files: Iterable[str]) -> None:
    """Reads every file once, so that no measurement waits for the disk."""
    for path in files:
        with Path(path).open("rb") as file:
            while file.read(1 << 24):
                pass


def expected_seconds(setup: Setup, table: Table) -> float:
    """About what a table takes in all, on two idle cores."""
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
