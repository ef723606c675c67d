# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A measurement in a fresh process: what goes to it, what comes back, and how it is run."""

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
TIMEOUT = 1800.0  # seconds for one process


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a process is to do: a kind of those above.

    cap: CPU-seconds that it may take of an epoch. server: the process id of the server beside it, or 0. state: a
    Checkpoint's.
    """

    kind: str
    loader: str
    case: Case
    cap: float = 0.0
    server: int = 0
    state: str = ""


@dataclass(frozen=True)
class Cost:
    """Seconds: of the clock, and of CPU of the loader's process tree and of the server."""

    wall: float
    client: float
    server: float


@dataclass(frozen=True)
class Epoch:
    """What an epoch, or the part of it that was read, cost, without the consumer's check.

    first: seconds of the clock to the first batch. bytes: of tensors. whole: whether the epoch was read to its end.
    """

    cost: Cost
    first: float
    rows: int
    bytes: int
    whole: bool


@dataclass(frozen=True)
class Checkpoint:
    """A state after so many batches, and the numbers of the rows that come next."""

    batches: int
    state: str
    following: list[int]


@dataclass(frozen=True)
class Resume:
    """What the first batch after a resume cost, and its row numbers."""

    cost: Cost
    following: list[int]


def run(job: Job) -> Any:
    """The answer of a fresh process, whose own processes are ended with it. RuntimeError tells why there is none."""
    paths = [machine.REPOSITORY / "test" / "bench", machine.REPOSITORY / "python" / "src"]
    # Hugging Face: no measurement waits for a network, and what it keeps lies with the tables.
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
        raise RuntimeError(f"ended with {process.returncode}: {told[-1]}")
    return json.loads(lines[-1])
