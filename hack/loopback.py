# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Free loopback ports, for servers whose port must be chosen before they start."""

import errno
import itertools
import os
import socket

# Linux uses ports from 32768 on for outgoing connections, so none of these is taken before the server binds it. Go's
# tests use ports from 12000 on (test/kit/proctest.Ports).
_FIRST, _END = 4096, 12000
_turn = itertools.count(os.getpid() * 37)


def free_port() -> int:
    """A port on which no process listens and which no recent call returned. Raises OSError if all are in use."""
    for turn in itertools.islice(_turn, _END - _FIRST):
        port = _FIRST + turn % (_END - _FIRST)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                return port
    raise OSError(errno.EADDRINUSE, f"no free port on loopback from {_FIRST} to {_END - 1}")
