# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A transform in processes of its own: how the function, rows and what it gives get there and back."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

import pyarrow as pa

from kubeflow_datacache.errors import TransformError

_ours: dict[str, Any] = {}  # a child's: the packed function, then the function


class Packed(NamedTuple):
    """A record batch as an IPC stream: exactly its rows, where pickle would send all of the memory they lie in."""

    stream: pa.Buffer


def pack(rows: pa.RecordBatch) -> Packed:
    """Rows, ready to be sent."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return Packed(sink.getvalue())


def unpack(sent: Any) -> Any:
    """Rows that were packed; anything else as it is."""
    return pa.ipc.open_stream(sent.stream).read_next_batch() if isinstance(sent, Packed) else sent


def pack_function(function: Callable[[pa.RecordBatch], Any], name: str) -> bytes:
    """The function, ready to be sent."""
    try:
        return pickle.dumps(function)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(
            f"transform {name} can't be sent to another process ({error}): define it at the top level of a module, or"
            " use transform_threads"
        ) from error


def pool(processes: int, function: bytes) -> ProcessPoolExecutor:
    """Processes that apply a packed function. They are spawned, not forked: gRPC's threads do not survive a fork."""
    if multiprocessing.current_process().daemon:
        raise TransformError(
            f"transform_processes = {processes} in a daemonic process, such as a worker of torch's DataLoader, which"
            " may not start others: use transform_threads there, or more workers"
        )
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(processes, mp_context=context, initializer=_begin, initargs=(function,))


def apply(sent: Packed) -> Any:
    """In the child: what the function gives for the rows, ready to be sent."""
    rows = unpack(sent)
    try:
        result = _function()(rows)
    except Exception as error:
        raise _portable(error) from error
    return pack(result) if isinstance(result, pa.RecordBatch) else result


def _begin(function: bytes) -> None:
    _ours["packed"] = function
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and ends its pool
    threading.Thread(target=_end_with_parent, name="datacache-parent", daemon=True).start()


def _end_with_parent() -> None:
    """A parent that is killed ends no pool: its children would wait for work for ever."""
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os._exit(1)


def _function() -> Callable[[pa.RecordBatch], Any]:
    if "function" not in _ours:
        _ours["function"] = pickle.loads(_ours["packed"])
    return _ours["function"]


def _portable(error: Exception) -> Exception:
    """The error if it survives being sent, else one that says the same: the pool would break over it."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
