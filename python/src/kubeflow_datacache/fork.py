# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""gRPC and forks: a process that has used gRPC leaves its forked children one that hangs or aborts."""

from __future__ import annotations

import os

from kubeflow_datacache.errors import ForkedError

_connected: dict[str, int] = {}  # the process that was the first to: this one, or one that it was forked from


def guard() -> None:
    """Notes that this process connects. ForkedError if it was forked from one that had connected before."""
    process = os.getpid()
    if (first := _connected.setdefault("process", process)) != process:
        raise ForkedError(
            f"process {process} was forked from process {first}, which had connected to a cache before, and gRPC"
            " does not work in a child of such a process. Start workers anew instead of forking them (DataLoader:"
            ' multiprocessing_context="forkserver" or "spawn"), or connect only in the workers: make the loader there'
        )
