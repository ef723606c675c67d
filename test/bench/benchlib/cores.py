# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Measures cores and memory used by loads, for several table sizes and numbers of workers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from benchlib.sample import Sample, Setup
from benchlib.subjects import OURS, start_ours
from benchlib.tables import SHAPES, Table, ensure

# Table sizes as fractions of the chosen scale, and numbers of workers (GOMAXPROCS).
SIZES = (0.1, 0.5, 1.0)
WORKERS = (1, 2, 8)
CORES = len(os.sched_getaffinity(0))
# Memory allowed in addition to the rows: per worker for decoding, and for the rest of the process.
WORKER_BYTES, PROCESS_BYTES = 32 << 20, 64 << 20


def tables(names: list[str], scale: float, data: Path, step: Callable[[str], None]) -> list[Table]:
    """The tables of all sizes; creates missing ones."""
    return [ensure(name, size * scale, data, step) for name in names for size in SIZES if name in SHAPES]


def case_of(table: Table, workers: int) -> str:
    """The report's name for a table size with a number of workers."""
    return f"{table.gigabytes:.1f} GB by {workers}"


def allowed(sample: Sample) -> float:
    """The memory limit of a load."""
    return sample.gigabytes * 1e9 + workers_of(sample) * WORKER_BYTES + PROCESS_BYTES


def workers_of(sample: Sample) -> int:
    """The number of workers of a sample."""
    return int(sample.case.rsplit(maxsplit=1)[-1])


def cores(setup: Setup, sized: list[Table], step: Callable[[str], None]) -> Iterator[Sample]:
    """Loads every table once per round with each number of workers, each time in a new process."""
    assert setup.server is not None
    for number in range(1, setup.rounds + 1):
        step(f"loads by {WORKERS} workers, round {number} of {setup.rounds}")
        for table in sized:
            for workers in WORKERS:
                environment = {"GOMAXPROCS": str(workers)}
                with start_ours(
                    setup.server, setup.nodes, table, setup.logs, f"{workers}", environment=environment
                ) as running:
                    yield Sample(
                        measure="cores",
                        table=table.name,
                        subject=OURS,
                        round=number,
                        case=case_of(table, workers),
                        gigabytes=table.gigabytes,
                        wall=running.start_wall,
                        server_cpu=running.start_cpu,
                        peak_rss=running.memory("VmHWM"),
                        load_average=os.getloadavg()[0],
                    )
