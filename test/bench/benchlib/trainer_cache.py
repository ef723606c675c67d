# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The data cache of Kubeflow Trainer (pkg/data_cache, in Rust): a head and two workers on this machine.

Its head has a local mode (RUNTIME_ENV) with fixed worker ports. `make trainer-cache` builds it.
"""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benchlib.process import Process, Serving
from benchlib.tables import Table
from kit.deadline import Wait
from kit.ports import free_port

# fixed in cmd/head/main.rs; workers listen where they are told to
WORKER_PORTS = (50052, 50053)
PROGRAMS = ("head", "worker")
READY_SECONDS = 300.0
POLL_SECONDS = 0.005


def programs(folder: Path | None) -> Path | None:
    """Returns the folder if it contains both programs."""
    return folder if folder and all((folder / name).exists() for name in PROGRAMS) else None


class TrainerCache(Serving):
    """A running cache with the table's rows in the workers' memory."""

    def __init__(self, name: str, programs: Path, table: Table, logs: Path) -> None:
        self.name = name
        self._programs, self._table, self._logs = programs, table, logs
        self._processes: list[Process] = []
        start = time.perf_counter()
        with ExitStack() as started:
            workers = [self._start(started, "worker", port) for port in WORKER_PORTS]
            port = free_port()
            head = self._start(started, "head", port)
            self._wait(lambda: _ready(head), "ready")
            self.start_wall = time.perf_counter() - start
            self.start_cpu = self.cpu()
            # The head reports ready once every worker has answered, even with an error, which it ignores.
            self._wait(lambda: all(map(_ready, workers)), "ready")
            self._stack = started.pop_all()
        self.uri = f"grpc://127.0.0.1:{port}"

    def _start(self, started: ExitStack, program: str, port: int) -> int:
        """Starts a process, waits until a worker listens, and returns its health port."""
        health = free_port()
        environment = {
            "METADATA_LOC": self._table.metadata,
            "SCHEMA_NAME": "bench",
            "TABLE_NAME": self._table.name,
            "RUNTIME_ENV": "bench",
            "HEALTH_PORT": str(health),
        }
        log = self._logs / f"{self._table.name}-trainer-{program}-{port}.log"
        command = [str(self._programs / program), "127.0.0.1", str(port)]
        process = Process(f"{self.name}'s {program}", command, log, environment)
        started.callback(process.stop)
        self._processes.append(process)
        if program == "worker":
            self._wait(lambda: _listens(port), "listening")
        return health

    def _wait(self, holds: Callable[[], bool], what: str) -> None:
        wait = Wait()
        while not holds():
            for process in self._processes:
                process.check()
            if wait.over():
                raise RuntimeError(f"{self.name} is not {what}; its logs are in {self._logs}")
            time.sleep(POLL_SECONDS)

    def cpu(self) -> float:
        """CPU-seconds of head and workers so far."""
        return sum(process.cpu() for process in self._processes)

    def memory(self, field: str) -> int:
        """A field of /proc/PID/status in bytes, summed over head and workers."""
        return sum(process.memory(field) for process in self._processes)

    def stop(self) -> None:
        """Stops head and workers."""
        self._stack.close()


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def _ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=READY_SECONDS)
    try:
        connection.request("GET", "/ready")
        return connection.getresponse().status == http.client.OK
    except OSError:
        return False
    finally:
        connection.close()
