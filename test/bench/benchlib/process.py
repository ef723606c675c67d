# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Server processes, with their CPU time from the kernel's process clock and memory from /proc."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self


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


def free_port() -> int:
    """A free loopback port."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


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


def see_out(process: subprocess.Popen[str]) -> None:
    """Waits for a process that is stopping; kills it after ten seconds."""
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


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


class Process:
    """A process that runs until it is stopped. Its stderr, and its stdout unless piped, go to a file."""

    def __init__(self, name: str, command: list[str], log: Path, more: Mapping[str, str], *, pipe: bool) -> None:
        self.name, self.log = name, log
        with log.open("wb") as file:
            stdout = subprocess.PIPE if pipe else file
            self._process = subprocess.Popen(command, stdout=stdout, stderr=file, text=True, env=os.environ | more)
        self.pid = self._process.pid

    def check(self, when: str) -> None:
        """Raises with the end of the log if the process has exited."""
        if self._process.poll() is not None:
            raise self._ended(when)

    def _ended(self, when: str) -> RuntimeError:
        """The exception for an exited process, with its status and the end of its log."""
        tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])
        status = self._process.wait()
        return RuntimeError(f"{self.name} ended with {status} {when}; the end of {self.log}:\n{tail}")

    def cpu(self) -> float:
        """CPU-seconds so far."""
        self.check("while it was measured")
        return cpu_seconds(self.pid)

    def memory(self, field: str) -> int:
        """A field of /proc/PID/status in bytes."""
        self.check("while it was measured")
        return memory_bytes(self.pid, field)

    def stop(self) -> None:
        """Stops the process with SIGTERM, and with SIGKILL after ten seconds."""
        self._process.terminate()
        see_out(self._process)


class Server(Process, Serving):
    """A server process that prints `ready URI ...` when it is ready."""

    def __init__(
        self,
        name: str,
        command: list[str],
        log: Path,
        timeout: float = 300,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        start = time.perf_counter()
        super().__init__(name, command, log, environment or {}, pipe=True)
        try:
            self.uri = self._wait_ready(timeout)
        except BaseException:
            self.stop()
            raise
        self.start_wall = time.perf_counter() - start
        self.start_cpu = self.cpu()

    def _wait_ready(self, timeout: float) -> str:
        stdout = self._process.stdout
        assert stdout is not None
        timer = threading.Timer(timeout, self._process.kill)
        timer.start()
        try:
            for line in stdout:
                words = line.split()
                if words and words[0] == "ready":
                    return words[1]
        finally:
            timer.cancel()
        raise self._ended(f"before it was ready (it has {timeout:.0f} s)")
