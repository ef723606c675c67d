# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""gRPC and forks: a process that has used gRPC leaves its forked children one that hangs or aborts.

Objects note the process that made them. In a forked child they neither wait for threads nor take locks of their
parent's: they begin anew, or raise ForkedError.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Final, TypeVar

from kubeflow_datacache.errors import ForkedError

Thing = TypeVar("Thing")

_connected: dict[
    str, int
] = {}  # id of the process that connected first: this one, or an ancestor that it was forked from
_grpc: Final[weakref.WeakSet[object]] = weakref.WeakSet()


def guard() -> None:
    """Notes that this process connects. ForkedError if it was forked from one that had connected before."""
    process = os.getpid()
    if (first := _connected.setdefault("process", process)) != process:
        raise error(first)


def error(parent: int) -> ForkedError:
    """What is raised in this process, where only its parent can go on."""
    return ForkedError(
        f"process {os.getpid()} was forked from process {parent}, which had connected to a cache before, and gRPC"
        " does not work in a child of such a process. Start workers anew instead of forking them (DataLoader:"
        ' multiprocessing_context="forkserver" or "spawn"), or connect only in the workers: make the loader there'
    )


def keep(thing: Thing) -> Thing:
    """Registers an object of gRPC's and returns it.

    Forked children never destroy it: its destructor would wait there for threads that only the parent has.
    """
    _grpc.add(thing)
    return thing


def _make_immortal() -> None:
    for thing in list(_grpc):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


os.register_at_fork(after_in_child=_make_immortal)
