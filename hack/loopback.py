# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Ports of the loopback for servers that must be told theirs before they start."""

import errno
import itertools
import os
import socket

# Linux gives outgoing connections their ports from 32768 on, so none of these is taken between the choice and the
# server's bind; Go's tests have 12000 and more (test/kit/proctest.Ports).
_FIRST, _END = 4096, 12000
_turn = itertools.count(os.getpid() * 37)


def free_port() -> int:
    """A port that nobody listens on, and that no other recent call was given. OSError when every one is in use."""
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
