# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Support for forked processes. In a child of a process that has used gRPC, gRPC calls hang or abort.

Objects record the process that created them. In a forked child they do not wait for the parent's threads or locks: they
start over, or raise ForkedError.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Final, TypeVar

from kubeflow_datacache.errors import ForkedError

Thing = TypeVar("Thing")

_connected: dict[str, int] = {}  # ID of the first process that connected: this one, or an ancestor that forked it
_grpc: Final[weakref.WeakSet[object]] = weakref.WeakSet()


def record_connection() -> None:
    """Records that this process connects. Raises ForkedError if it was forked from a process that had connected."""
    process = os.getpid()
    if (first := _connected.setdefault("process", process)) != process:
        raise forked_error(first)


def forked_error(parent: int) -> ForkedError:
    """The ForkedError for a child of `parent`."""
    return ForkedError(
        f"process {os.getpid()} was forked from process {parent}, which had connected to a cache before, and gRPC"
        " does not work in a child of such a process. Start workers anew instead of forking them (DataLoader:"
        ' multiprocessing_context="forkserver" or "spawn"), or connect only in the workers: make the loader there'
    )


def protect(thing: Thing) -> Thing:
    """Registers a gRPC object and returns it.

    In a forked child it is never destroyed: its destructor would wait for threads that exist only in the parent.
    """
    _grpc.add(thing)
    return thing


def _make_immortal() -> None:
    for thing in list(_grpc):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


os.register_at_fork(after_in_child=_make_immortal)
