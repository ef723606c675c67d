# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A server on this machine, which lives as long as processes use it."""

from __future__ import annotations

import contextlib
import csv
import fcntl
import hashlib
import io
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Final, TypeVar

from kubeflow_datacache.arguments import check_list
from kubeflow_datacache.errors import CacheFailedError, DataCacheError
from kubeflow_datacache.extras import missing_extra

T = TypeVar("T")
Flag = str | float | Sequence[str] | Mapping[str, str] | None
_LOOK_SECONDS: Final = 0.02  # before a file or a lock is looked at again
_END_SECONDS: Final = 5.0  # that close() waits for the server to end


class LocalServer:
    """A `cacheserver local`, started by this process or, if it is shared, by any process of this user.

    Each process that uses the server holds a lock (flock) on a file, and so do its forked children: the server ends
    when nobody holds one any more, however they ended. The server holds a lock on its log, which tells that it lives.
    Use it from one thread at a time.
    """

    def __init__(self, program: str, flags: Sequence[str], *, shared: bool) -> None:
        if sys.platform != "linux":
            raise OSError('cacheserver runs on Linux only: elsewhere connect to one, as DataCache("grpc://HOST:50051")')
        self._command = [program, "local", *flags, "--listen=127.0.0.1:0", "--http=127.0.0.1:0"]
        self._shared = shared
        self._process: subprocess.Popen[bytes] | None = None
        own = hashlib.sha256(json.dumps(self._command).encode()).hexdigest()[:16] if shared else None
        self._users, self._log = _file(own), _file(own and f"{own}.log")
        fcntl.flock(self._users, fcntl.LOCK_SH)
        self.endpoint = self._join()

    def watched(self, call: Callable[[], T]) -> T:
        """Makes a call to the server. If it fails because the server has ended, raises CacheFailedError or ValueError
        with the server's reason."""
        try:
            return call()
        except DataCacheError:
            if (log := self._lock_log()) is None:
                raise
            log.close()
            raise self._reason() from None

    def close(self) -> None:
        """Stops using the server, which ends if nobody else does."""
        self._users.close()
        self._log.close()
        if self._process is not None and not self._shared:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_SECONDS)

    def _join(self) -> str:
        """The address of the server. Starts the server if there is none."""
        while True:
            if (log := self._lock_log()) is not None:
                with log:
                    if self._process is not None:
                        raise self._reason()
                    self._process = self._start(log)
            addresses, end, _ = _text(self._users).partition("\n")
            if end:
                return addresses.split()[0]
            time.sleep(_LOOK_SECONDS)

    def _start(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        """Starts the server, which inherits the lock on its log. A terminal's Ctrl-C does not reach it."""
        with _reopened(self._users) as users:
            for file in (users, log):
                os.ftruncate(file.fileno(), 0)
            return subprocess.Popen(
                [*self._command, f"--while-held=/proc/self/fd/{users.fileno()}"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                pass_fds=[users.fileno()],
                start_new_session=True,
            )

    def _lock_log(self) -> IO[bytes] | None:
        """The log, locked; None if a server lives, which holds the lock."""
        log = _reopened(self._log)
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.close()
            return None
        return log

    def _reason(self) -> Exception:
        """Why the server has ended: the last line of its log."""
        said = _text(self._log).rstrip().rpartition("\n")[2]
        error = said.removeprefix("error: ")
        if error.startswith("the cache failed: "):
            return CacheFailedError(error)
        if error != said:
            return ValueError(f"cacheserver local: {error}")
        code = "" if self._process is None else f" with {self._process.wait()}"
        return DataCacheError(f"the server on this machine has ended{code}; the last line of its log: {said!r}")


def find_program() -> str:
    """The program cacheserver: that of the package kubeflow-datacache-server, or else the one on PATH."""
    try:
        from kubeflow_datacache_server import CACHESERVER
    except ModuleNotFoundError as error:
        if found := shutil.which("cacheserver"):
            return os.path.realpath(found)
        raise missing_extra(error, "server", "DataCache.local()") from error
    return str(CACHESERVER)


def table_flag(path: str) -> str:
    """The flag for an Iceberg table, by its metadata file or its folder, or for Parquet files."""
    where = path if "://" in path else os.path.abspath(path)
    iceberg = where.endswith(".json") or ".metadata.json" in where or os.path.isdir(os.path.join(where, "metadata"))
    return f"--metadata={where}" if iceberg else f"--files={where}"


def flags_of(options: Mapping[str, Flag]) -> Iterator[str]:
    """The flags of `cacheserver local` for keyword arguments: memory_limit="4Gi" is --memory-limit=4Gi."""
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            yield f"{flag}={str(value).lower()}"
        elif isinstance(value, str | int | float):
            yield f"{flag}={value}"
        elif isinstance(value, Mapping):
            yield from (f"{flag}={key}={each}" for key, each in value.items())
        elif value is not None:
            csv.writer(line := io.StringIO(), lineterminator="").writerow(check_list(name, value, "texts"))
            yield f"{flag}={line.getvalue()}"


def _file(name: str | None) -> IO[bytes]:
    """A file that all processes of this user share, or, without a name, a temporary one."""
    if name is None:
        return tempfile.TemporaryFile()
    folder = Path(tempfile.gettempdir(), f"datacache-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077 or not stat.S_ISDIR(found.st_mode):
        raise PermissionError(f"{folder}: want a folder that only this user can read and write: remove it")
    return (folder / name).open("a+b")


def _reopened(file: IO[bytes]) -> IO[bytes]:
    """The same file, opened anew: a lock belongs to one opening of a file."""
    return open(f"/proc/self/fd/{file.fileno()}", "r+b", buffering=0)


def _text(file: IO[bytes]) -> str:
    """The beginning of a file, enough for a log with an error."""
    return os.pread(file.fileno(), 1 << 20, 0).decode(errors="replace")
