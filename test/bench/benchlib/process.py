# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Server processes, with their CPU time from the kernel's process clock and memory from /proc."""

from __future__ import annotations

import os
import resource
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from kit import process
from kit.deadline import limit
from kit.process import see_out


def cpu_seconds(pid: int) -> float:
    """CPU time (user and system) of all threads of a process, including ended ones, in nanosecond resolution.

    Uses clock_getcpuclockid(3), as /proc/PID/stat has a resolution of 10 ms.
    """
    return time.clock_gettime((~pid << 3) | 2)


def tree_cpu_seconds() -> float:
    """CPU time of this process and its descendants: threads, running children and ended children."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime + sum(map(_below, _children(os.getpid())))


def _below(pid: int) -> float:
    """CPU time of a process and its descendants; 0 for a process that has ended, whose time its parent's includes."""
    try:
        user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[13:15]  # time of ended children
        ended = (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
        return cpu_seconds(pid) + ended + sum(map(_below, _children(pid)))
    except OSError:
        return 0.0


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        # the thread has just ended; another thread of the process is now the parent of its children
        with suppress(OSError):
            found += map(int, task.read_text().split())
    return found


def memory_bytes(pid: int, field: str) -> int:
    """A field of /proc/PID/status in bytes: VmRSS is the current, VmHWM the peak resident memory."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    raise LookupError(f"/proc/{pid}/status has no {field}")


@dataclass(frozen=True)
class Run:
    """The resources that a process used in total."""

    output: str
    wall: float
    cpu: float
    peak_rss: int


def run(command: list[str]) -> Run:
    """Runs a command to its end. Raises with its stderr if it fails."""
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        output, errors = process.stdout, process.stderr
        assert output is not None
        assert errors is not None
        text = output.read()
        message = errors.read()
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"{command[0]} ended with {process.returncode}: {message.strip()}")
    return Run(text, wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


class Stoppable(ABC):
    """Something that runs processes and is stopped at the end of a with block."""

    @abstractmethod
    def stop(self) -> None:
        """Stops the processes."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


class Serving(Stoppable):
    """A server with its rows in memory, in one or several processes, and the resources used until then."""

    name: str
    uri: str
    start_wall: float
    start_cpu: float

    @abstractmethod
    def cpu(self) -> float:
        """CPU-seconds so far."""

    @abstractmethod
    def memory(self, field: str) -> int:
        """A field of /proc/PID/status in bytes, summed over the processes."""


class Process(Stoppable, process.Process):
    """A process that runs until it is stopped, whose resources are measured."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, more: Mapping[str, str], out: int | None = None
    ) -> None:
        log.unlink(missing_ok=True)
        super().__init__(name, command, log, os.environ | more, out)

    def cpu(self) -> float:
        """CPU-seconds so far."""
        self.check()
        return cpu_seconds(self.pid)

    def memory(self, field: str) -> int:
        """A field of /proc/PID/status in bytes."""
        self.check()
        return memory_bytes(self.pid, field)

    def stop(self) -> None:
        """Stops the process with SIGTERM, and with SIGKILL at the time limit."""
        self.terminate()
        see_out(self)


class Server(Process, Serving):
    """A server process that prints `ready URI ...` when it is ready."""

    def __init__(self, name: str, command: list[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        within = limit()
        start = time.perf_counter()
        super().__init__(name, command, log, environment or {}, subprocess.PIPE)
        try:
            self.uri = self._wait_ready(within)
        except BaseException:
            self.stop()
            raise
        self.start_wall = time.perf_counter() - start
        self.start_cpu = self.cpu()

    def _wait_ready(self, within: float) -> str:
        assert self.stdout is not None
        timer = threading.Timer(within, self.kill)
        timer.start()
        try:
            for line in self.stdout:
                words = line.decode().split()
                if words and words[0] == "ready":
                    return words[1]
        finally:
            timer.cancel()
        self.wait()
        raise self.ended()
