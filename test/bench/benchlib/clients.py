# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A pool of client processes that are started once, so that no measurement includes the start of an interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchlib.network import LOOPBACK, Place
from benchlib.process import Stoppable
from kit.process import see_out

# Path of kubeflow_datacache for client.py.
LOADER = Path(__file__).resolve().parents[3] / "python" / "src"


@dataclass(frozen=True)
class Reading:
    """The result of several clients that read at the same time: sums, wall time until the last was done, and all
    answers."""

    rows: int
    bytes: int
    wall: float
    cpu: float
    answers: list[dict[str, Any]]


class Clients(Stoppable):
    """Up to `size` client processes. Not safe for concurrent use."""

    def __init__(self, size: int, place: Place = LOOPBACK) -> None:
        command = [*place.before, sys.executable, "-P", str(Path(__file__).with_name("client.py"))]
        environment = os.environ | {"PYTHONPATH": str(LOADER)}
        self._processes = [
            subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(size)
        ]

    def read(self, requests: list[dict[str, Any]]) -> Reading:
        """Sends each request to a different client at the same time, and waits for all answers."""
        busy = self._processes[: len(requests)]
        start = time.perf_counter()
        for process, request in zip(busy, requests, strict=True):
            assert process.stdin is not None
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
        answers = [self._answer(process) for process in busy]
        wall = time.perf_counter() - start
        errors = [a["error"] for a in answers if "error" in a]
        if errors:
            raise RuntimeError(f"{len(errors)} of {len(busy)} clients failed: {errors[0]}")
        return Reading(
            rows=sum(a["rows"] for a in answers),
            bytes=sum(a["bytes"] for a in answers),
            wall=wall,
            cpu=sum(a["cpu"] for a in answers),
            answers=answers,
        )

    @staticmethod
    def _answer(process: subprocess.Popen[str]) -> dict[str, Any]:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"client process {process.pid} ended with {process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def stop(self) -> None:
        """Stops the clients."""
        for process in self._processes:
            if process.stdin is not None:
                process.stdin.close()
        for process in self._processes:
            see_out(process)
