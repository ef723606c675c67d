# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Programs as processes: their output is kept, and none is left over."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from kit.deadline import Wait

_POLL = 0.02  # seconds
# Python's own, which end with the interpreter that started them.
_OF_PYTHON = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
# The IDs of processes that may outlive the test module that started them, as a fixture of the session has them.
lasting = set[int]()


class EndedError(AssertionError, RuntimeError):
    """A process has ended that must run: a test fails, a bench goes on without what it measures."""


class Process(subprocess.Popen[bytes]):
    """A running program. What it writes is appended to the file log, but its standard output goes to out, if given:
    a file that is written anew, or subprocess.PIPE."""

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        log: Path,
        env: Mapping[str, str],
        out: Path | int | None = None,
    ) -> None:
        with contextlib.ExitStack() as files:
            errors = files.enter_context(log.open("ab"))
            output = files.enter_context(out.open("wb")) if isinstance(out, Path) else out
            super().__init__(command, stdout=errors if output is None else output, stderr=errors, env=env)
        self.name, self.log = name, log

    def check(self) -> None:
        """Raises EndedError if the process has ended."""
        if self.poll() is not None:
            raise self.ended()

    def ended(self) -> EndedError:
        """The exception for a process that has ended, with its exit code and the end of its log."""
        tail = self.log.read_text(errors="replace")[-3000:]
        return EndedError(f"{self.name} ended with {self.returncode}; the end of {self.log}:\n{tail}")


def see_out(process: subprocess.Popen[Any]) -> int:
    """Waits until a process has ended that was told to; kills it at the time limit. Returns its exit code."""
    wait = Wait()
    while process.poll() is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1)
        if wait.over():
            process.kill()
    if process.stdout is not None:
        process.stdout.close()
    return process.returncode


def shared_memory(pid: int) -> set[Path]:
    """The files in /dev/shm that a process has mapped."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        return {Path(line[line.index("/dev/shm/") :]) for line in lines if "/dev/shm/" in line}
    return set()


def with_variable(name: str, value: str) -> list[str]:
    """The commands of running processes, of this user, that have been started with this environment variable."""
    found, wanted = list[str](), os.fsencode(f"{name}={value}")
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # of another user, or ended meanwhile
            if wanted in (process / "environ").read_bytes().split(b"\0"):
                found.append(_command(int(process.name)))
    return found


def require_none_left(of: str, but: Collection[int] = ()) -> None:
    """Waits until no process that this one has started is running, directly or by others, and none is in `but`.

    At the time limit it kills those that are left, so that they are blamed once, and raises AssertionError.
    """
    gc.collect()  # some processes end when the objects do that stand for them
    wait = Wait()
    while left := {pid: command for pid, command in _descendants().items() if pid not in but}:
        if wait.over():
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            raise AssertionError(f"{of} left processes over: {'; '.join(f'{p}: {c}' for p, c in left.items())}")
        time.sleep(_POLL)


def _descendants() -> dict[int, str]:
    """The running processes below this one, and their commands."""
    parents = dict[int, int]()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # ended meanwhile
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            if state not in "ZX":
                parents[int(stat.parent.name)] = int(parent)
    found, newest = dict[int, str](), {os.getpid()}
    while newest := {pid for pid, parent in parents.items() if parent in newest}:
        found |= {pid: _command(pid) for pid in newest}
    return {pid: command for pid, command in found.items() if command and not any(own in command for own in _OF_PYTHON)}


def _command(pid: int) -> str:
    """The command line of a process; "" if it has ended."""
    with contextlib.suppress(OSError):
        return os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")).strip()
    return ""
