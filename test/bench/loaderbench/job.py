# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A measurement in a new process: its input, its result, and how to run it."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from benchlib import machine
from loaderbench.case import Case

PREPARE, EPOCH, CHECKPOINT, RESUME = "prepare", "epoch", "checkpoint", "resume"
TIMEOUT = 600.0  # time limit in seconds of a process


@dataclass(frozen=True, kw_only=True)
class Job:
    """The task of a measuring process: one of the kinds above.

    cap: limit of CPU-seconds for an epoch; wall: of seconds. server: process id of our server, or 0.
    memory: what loader and server may use, as a fraction of the table in Arrow, or 0; group: the file of the control
    group that sees to it. state: from a Checkpoint.
    """

    kind: str
    loader: str
    case: Case
    cap: float = 0.0
    wall: float = float("inf")
    server: int = 0
    memory: float = 0.0
    group: str = ""
    state: str = ""


@dataclass(frozen=True)
class Cost:
    """Seconds of wall time, and of CPU time of the loader's process tree and of the server."""

    wall: float
    client: float
    server: float


@dataclass(frozen=True)
class Epoch:
    """The cost of an epoch, or of the part that was read, without the consumer's check.

    first: wall seconds to the first batch. bytes: of tensors. whole: whether the whole epoch was read.
    """

    cost: Cost
    first: float
    rows: int
    bytes: int
    whole: bool


@dataclass(frozen=True)
class Checkpoint:
    """A state after `batches` batches, and the row numbers of the next batch."""

    batches: int
    state: str
    following: list[int]


@dataclass(frozen=True)
class Resume:
    """The cost of the first batch after a resume, and its row numbers."""

    cost: Cost
    following: list[int]


def run(job: Job) -> Any:
    """Runs a job in a new process and returns its answer; stops the process's children. Raises RuntimeError if it
    fails."""
    paths = [machine.REPOSITORY / "test" / "bench", machine.REPOSITORY / "python" / "src"]
    # For Hugging Face: no network access, and cached files beside the tables.
    hub = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(job.case.data.with_name("huggingface"))}
    environment = os.environ | hub | {"PYTHONPATH": os.pathsep.join(map(str, paths))}
    with subprocess.Popen(
        [sys.executable, "-m", "loaderbench.child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    ) as process:
        try:
            output, errors = process.communicate(pickle.dumps(job), TIMEOUT)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"not done after {TIMEOUT:.0f} s") from None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    lines = output.decode().splitlines()
    if process.returncode or not lines:
        told = errors.decode(errors="replace").strip().splitlines() or ["no message"]
        if job.group and process.returncode == -signal.SIGKILL:
            told = ["killed by the kernel, as it needed more memory"]
        raise RuntimeError(f"ended with {process.returncode}: {told[-1]}")
    return json.loads(lines[-1])
