# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A limit of memory for processes and the files that they read, and how fast the disk reads."""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from benchlib.process import Stoppable

# The memory controller of both versions of control groups: its folder, and the file that has the limit.
_CONTROLLERS = (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max"))
_READ = 4 << 20  # bytes of a read of the disk
_PATIENCE = 10.0  # seconds until the processes of a group must have ended


class NoGroupError(RuntimeError):
    """A control group cannot be created: it needs root and a memory controller."""


class Group(Stoppable):
    """A control group whose processes may use `limit` bytes, pages of files that they read included.

    Pages count for who read them first: drop those in the page cache before (drop_page_cache).
    """

    def __init__(self, limit: int) -> None:
        self.limit, reasons = limit, list[str]()
        for parent, name in _CONTROLLERS:
            try:
                self._path = Path(tempfile.mkdtemp(prefix="datacache-bench-", dir=parent))
            except OSError as error:
                reasons.append(str(error))
                continue
            try:
                (self._path / name).write_text(str(limit))
                return
            except OSError as error:
                reasons.append(str(error))
                self._path.rmdir()
        raise NoGroupError(f"no control group with a limit of memory: {'; '.join(reasons)}")

    @property
    def processes(self) -> str:
        """The file that takes the process ID of who joins."""
        return str(self._path / "cgroup.procs")

    @property
    def before(self) -> tuple[str, ...]:
        """The prefix of a command that runs in the group."""
        return ("sh", "-c", f'echo $$ > "{self.processes}" && exec "$@"', "sh")

    def stop(self) -> None:
        """Removes the group. Its processes must have been stopped."""
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                return self._path.rmdir()
            except OSError as error:
                if error.errno != errno.EBUSY or time.monotonic() > until:
                    raise
                time.sleep(0.05)


def drop_page_cache(files: Iterable[str]) -> None:
    """Has the kernel forget the pages of files, so that who reads them next reads from disk."""
    for path in files:
        file = os.open(path, os.O_RDONLY)
        try:
            os.fdatasync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)


def disk_speed(files: Iterable[str], seconds: float = 3.0) -> float:
    """Bytes a second that one thread gets of files by reads of 4 MiB past the page cache, for at most so long."""
    buffer, read, began = mmap.mmap(-1, _READ), 0, time.perf_counter()
    for path in files:
        file = os.open(path, os.O_RDONLY | os.O_DIRECT)
        try:
            at = 0
            while got := os.preadv(file, [buffer], at):
                at, read = at + got, read + got
                if time.perf_counter() - began > seconds:
                    return read / (time.perf_counter() - began)
        finally:
            os.close(file)
    return read / (time.perf_counter() - began)
