# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Free loopback ports, for servers whose port must be chosen before they start."""

import errno
import fcntl
import functools
import itertools
import os
import socket
import tempfile
from pathlib import Path

# Linux uses ports from 32768 on for outgoing connections, so none of these is taken before the server binds it. Go's
# tests take theirs from the same file (test/kit/proctest/ports.go).
_FIRST, _END = 4096, 32768
_turn = itertools.count(os.getpid() * 37)


def free_port() -> int:
    """A port on which no process listens and which no other process of this user has been given by this function.

    A port may be returned again, to the same process, once all others have been. Raises OSError if all are in use.
    """
    for turn in itertools.islice(_turn, _END - _FIRST):
        port = _FIRST + turn % (_END - _FIRST)
        if _claim(port) and _unused(port):
            return port
    raise OSError(errno.EADDRINUSE, f"no free port on loopback from {_FIRST} to {_END - 1}")


def _claim(port: int) -> bool:
    try:
        fcntl.lockf(_claims(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except (BlockingIOError, PermissionError):  # fcntl(2): either says that another process has it
        return False
    return True


@functools.cache
def _claims() -> int:
    """An open file whose byte N is locked by the process that has port N, for as long as that process lives."""
    return os.open(Path(tempfile.gettempdir(), f"datacache-ports-{os.getuid()}"), os.O_RDWR | os.O_CREAT, 0o600)


def _unused(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return False
    return True
