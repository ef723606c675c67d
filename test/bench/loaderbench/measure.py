# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Measurements of one table: every loader once per round, each time in a new process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchlib.memory import Group, disk_speed, drop_page_cache
from benchlib.process import Server
from benchlib.tables import Table
from loaderbench.case import BATCH, Case
from loaderbench.job import CHECKPOINT, EPOCH, RESUME, Checkpoint, Cost, Job, run

OURS = "datacache"
# CPU limit up to a checkpoint, as a multiple of an epoch's CPU: slow loaders resume earlier in the epoch.
CHECKPOINT_CAPS = 5


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One measurement. client, server: CPU-seconds. gigabytes: 1e9 bytes of tensors.

    share: the fraction of the epoch that was read, or before the resume. right: whether the batch after the resume was
    the expected one. memory: the limit of memory of loader and server as a fraction of the table in Arrow;
    0: none. disk: bytes a second that the disk gave, where memory is limited.
    """

    measure: str
    table: str
    loader: str
    shuffle: bool
    workers: int
    wall: float
    client: float
    server: float
    first: float = 0.0
    rows: int = 0
    gigabytes: float = 0.0
    share: float = 1.0
    right: bool = True
    memory: float = 0.0
    disk: float = 0.0
    load_average: float = 0.0


@dataclass(frozen=True)
class Setup:
    """What to measure. rounds: number of rounds for our loader; peer_rounds: for the others. cap: CPU limit per read in
    seconds. memory: limits of memory as fractions of the table, and wall: seconds of a read with such a limit."""

    only: list[str]
    workers: list[int]
    rounds: int
    peer_rounds: int
    cap: float
    memory: list[float]
    wall: float

    def rounds_of(self, loader: str) -> int:
        """The number of rounds of a loader."""
        return self.rounds if loader == OURS else self.peer_rounds


class Bench:
    """Measures tables. progress is called with each next step. failures: errors by loader and task."""

    def __init__(self, setup: Setup, progress: Callable[[str], None]) -> None:
        self.failures: dict[str, str] = {}
        self._setup, self._progress = setup, progress
        self._disks: dict[str, float] = {}  # bytes a second, by table

    def table(self, table: Table, formats: dict[str, Path], server: Server | None) -> Iterator[Sample]:
        """Yields all samples of a table. formats: the path of the table for each loader. server: ours, serving the
        table."""
        if EPOCH in self._setup.only:
            for workers in self._setup.workers:
                for shuffle in (False, True):
                    yield from self._epochs(self._jobs(table, formats, server, shuffle=shuffle, workers=workers))
        if RESUME in self._setup.only:
            yield from self._resumes(self._jobs(table, formats, server, shuffle=True, workers=0))

    def limited(self, table: Table, formats: dict[str, Path], start: Callable[[Group], Server]) -> Iterator[Sample]:
        """Yields epochs of all loaders with each limit of memory, in which files count that they read from disk. Each
        has the disk and its memory for itself. start: starts our server in a group."""
        for memory in self._setup.memory:
            disk = self._disks.setdefault(table.name, 0.0) or disk_speed(table.files)
            self._disks[table.name] = disk
            for shuffle in (False, True):
                jobs = self._jobs(table, formats, None, shuffle=shuffle)
                jobs = [replace(job, cap=float("inf"), wall=self._setup.wall, memory=memory) for job in jobs]
                for sample in self._epochs(jobs, lambda job: self._limited(job, start)):
                    yield replace(sample, memory=memory, disk=disk)

    @staticmethod
    def _limited(job: Job, start: Callable[[Group], Server]) -> Any:
        """The answer of a process in a group of its own, with our server in it if the loader is ours."""
        table = job.case.table
        with ExitStack() as stack:
            group = stack.enter_context(Group(int(job.memory * table.arrow_bytes)))
            own = (str(file) for file in job.case.data.rglob("*") if file.is_file())
            drop_page_cache([*table.files, *own])
            if job.loader == OURS:
                server = stack.enter_context(start(group))
                job = replace(job, server=server.pid, case=replace(job.case, uri=server.uri))
            return run(replace(job, group=group.processes))

    def _jobs(self, table: Table, formats: dict[str, Path], server: Server | None, **how: Any) -> list[Job]:
        jobs: list[Job] = []
        for loader in formats:
            ours = server if loader == OURS else None
            case = Case(table=table, data=formats[loader], uri=ours.uri if ours else "", **how)
            jobs.append(Job(kind=EPOCH, loader=loader, case=case, cap=self._setup.cap, server=ours.pid if ours else 0))
        return jobs

    def _epochs(self, jobs: list[Job], run: Callable[[Job], Any] = run) -> Iterator[Sample]:
        for job, turn in self._turns(jobs):
            if got := self._run(job, turn, run):
                yield self._sample(
                    job,
                    Cost(**got["cost"]),
                    first=got["first"],
                    rows=got["rows"],
                    gigabytes=got["bytes"] / 1e9,
                    share=got["rows"] / job.case.table.rows,
                )

    def _resumes(self, jobs: list[Job]) -> Iterator[Sample]:
        """Saves states at half of an epoch, then measures the first batch after each resume in a new process."""
        kept: dict[str, Checkpoint] = {}
        resumes: list[Job] = []
        for job in jobs:
            job = replace(
                job, kind=CHECKPOINT, cap=self._setup.cap * CHECKPOINT_CAPS, case=replace(job.case, resumable=True)
            )
            if got := self._run(job, "once"):
                kept[job.loader] = Checkpoint(**got)
                resumes.append(replace(job, kind=RESUME, state=got["state"]))
        for job, turn in self._turns(resumes):
            if got := self._run(job, turn):
                checkpoint = kept[job.loader]
                share = checkpoint.batches * BATCH / job.case.table.rows
                right = got["following"] == checkpoint.following
                yield self._sample(job, Cost(**got["cost"]), share=share, right=right)

    def _turns(self, jobs: list[Job]) -> Iterator[tuple[Job, str]]:
        """Yields each job once per round, with the round's label; jobs with fewer rounds end earlier."""
        for number in range(1, max(self._setup.rounds, self._setup.peer_rounds) + 1):
            for job in jobs:
                if number <= (rounds := self._setup.rounds_of(job.loader)):
                    yield job, f"round {number} of {rounds}"

    def _run(self, job: Job, turn: str, run: Callable[[Job], Any] = run) -> dict[str, Any] | None:
        """The answer of a new process; None after a failure. Jobs that failed once are not repeated."""
        what = name(job.loader, job.case.table.name, job.case.shuffle, job.case.workers) + f", {job.kind}"
        what += f" with memory for {job.memory:g} of the table" if job.memory else ""
        if what in self.failures:
            return None
        self._progress(f"{what}, {turn}")
        try:
            return run(job)
        except RuntimeError as error:
            self.failures[what] = str(error)
            self._progress(f"{what}: left out: {error}")
            return None

    def _sample(self, job: Job, cost: Cost, **more: Any) -> Sample:
        return Sample(
            measure=job.kind,
            table=job.case.table.name,
            loader=job.loader,
            shuffle=job.case.shuffle,
            workers=job.case.workers,
            memory=job.memory,
            wall=cost.wall,
            client=cost.client,
            server=cost.server,
            load_average=os.getloadavg()[0],
            **more,
        )


def name(loader: str, table: str, shuffle: bool, workers: int) -> str:
    """The description of a measurement."""
    return f"{loader}, {table}, {order(shuffle)}, {workers} workers"


def order(shuffle: bool) -> str:
    """The name of an epoch's order."""
    return "shuffled" if shuffle else "in order"
