# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The measuring process: reads a pickled Job from stdin and writes its answer as a line of JSON.

Imports and a first use of the loader are not counted, so that lazy imports do not count for an epoch.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import pickle
import shutil
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch  # pyright: ignore[reportMissingImports] - in the peers' environment alone

from benchlib.process import cpu_seconds, tree_cpu_seconds
from loaderbench import case, shapes
from loaderbench.case import ALONE, NEVER, Batch, Case, Loader
from loaderbench.check import Check
from loaderbench.job import CHECKPOINT, EPOCH, PREPARE, RESUME, Checkpoint, Cost, Epoch, Job, Resume

LOOK_SECONDS = 0.1  # seconds between readings of CPU time, each of which takes a millisecond


class Meter:
    """Reads wall and CPU clocks together."""

    def __init__(self, server: int) -> None:
        self._server = server
        self._start = self._read()

    def cost(self) -> Cost:
        """The cost since the meter was created."""
        return Cost(*(now - then for now, then in zip(self._read(), self._start, strict=True)))

    def _read(self) -> tuple[float, float, float]:
        return time.perf_counter(), tree_cpu_seconds(), cpu_seconds(self._server) if self._server else 0.0


def first_use(loader: Loader, of: Case) -> None:
    """Reads one batch with a loader and closes it."""
    if loader.FIRST_USE == NEVER or (loader.FIRST_USE == ALONE and of.workers):
        return
    source = loader.open(replace(of, workers=0))
    batches = iter(source)
    tensors_only(next(batches))
    del batches
    source.close()


def tensors_only(batch: Batch) -> None:
    """Raises TypeError if a batch has anything but tensors."""
    for name, column in batch.items():
        for tensor in column if isinstance(column, list) else [column]:
            if not isinstance(tensor, torch.Tensor):
                raise TypeError(f"column {name} came as {type(tensor).__name__}, not as tensors")


def row_numbers(batch: Batch, of: Case) -> list[int]:
    """The row numbers in a batch, in order."""
    return batch[shapes.IDS[of.table.name]].tolist()


def epoch(loader: Loader, job: Job) -> Epoch:
    """Measures an epoch. With workers, starts once each has returned a batch, so that the start of processes is not
    counted."""
    source = loader.open(job.case)
    check = Check(shapes.IDS[job.case.table.name], torch.cat)
    truth = shapes.truth(job.case.table)
    meter = Meter(job.server)
    batches = iter(source)
    batch = next(batches)
    first = meter.cost().wall
    tensors_only(batch)
    check.add(batch)
    rows = 0
    if job.case.workers:
        for batch in itertools.islice(batches, job.case.workers - 1):
            check.add(batch)
        check.flush()
        rows, check.cpu = check.rows, 0.0
        meter = Meter(job.server)
    whole, due = True, 0.0
    for batch in batches:
        if not check.add(batch) or time.perf_counter() < due:
            continue
        looked = time.thread_time()
        cost = meter.cost()
        whole = cost.client - check.cpu < job.cap and cost.wall < job.wall
        due = time.perf_counter() + LOOK_SECONDS
        check.cpu += time.thread_time() - looked
        if not whole:
            break
    cost = meter.cost()
    cost = replace(cost, client=cost.client - check.cpu)
    check.flush()
    check.verify(truth, whole)
    measured = check.rows - rows
    return Epoch(cost, first, measured, check.bytes * measured // check.rows, whole)


def checkpoint(loader: Loader, job: Job) -> Checkpoint:
    """Saves a state at half of the epoch, or when the CPU limit is reached."""
    source = loader.open(job.case)
    batches = iter(source)
    meter, given = Meter(job.server), 0
    for _ in itertools.islice(batches, job.case.table.rows // case.BATCH // 2):
        given += 1
        if given % 64 == 0 and meter.cost().client > job.cap:
            break
    state = base64.b64encode(pickle.dumps(source.state())).decode()
    return Checkpoint(given, state, row_numbers(next(batches), job.case))


def resume(loader: Loader, job: Job) -> Resume:
    state = pickle.loads(base64.b64decode(job.state))
    meter = Meter(job.server)
    source = loader.open(job.case)
    source.restore(state)
    batch = next(iter(source), None)  # a state without remaining rows ends at once
    return Resume(meter.cost(), [] if batch is None else row_numbers(batch, job.case))


def prepare(loader: Loader, job: Job) -> None:
    """Writes the table in the loader's own format, atomically."""
    part = job.case.data.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    part.parent.mkdir(parents=True, exist_ok=True)
    loader.prepare(job.case.table, part)
    part.rename(job.case.data)


def answer(job: Job) -> Any:
    """Runs the job; returns JSON-serializable values."""
    loader = case.load(job.loader)
    if job.kind == PREPARE:
        return prepare(loader, job)
    if job.group:  # what was imported is outside; a first use would leave pages there that the limit has to hold
        Path(job.group).write_text(str(os.getpid()))
    else:
        first_use(loader, job.case)
    kinds: dict[str, Callable[[Loader, Job], Any]] = {EPOCH: epoch, CHECKPOINT: checkpoint, RESUME: resume}
    return asdict(kinds[job.kind](loader, job))


def main() -> None:
    job: Job = pickle.load(sys.stdin.buffer)
    warnings.filterwarnings("ignore")  # warnings about read-only arrays; nothing writes to these tensors
    torch.set_num_threads(1)
    print(json.dumps(answer(job)), flush=True)


if __name__ == "__main__":
    main()
