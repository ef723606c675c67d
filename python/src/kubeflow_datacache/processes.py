# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs a transform in child processes: transfers the function, the rows and the results."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import wait as wait_for
from typing import Any, NamedTuple

import pyarrow as pa

from kubeflow_datacache.errors import TransformError
from kubeflow_datacache.threads import LAST_SECONDS

_child: dict[str, Any] = {}  # of a child process: "packed" is the pickled function, "function" the unpickled one


class Packed(NamedTuple):
    """A record batch as an IPC stream with exactly its rows; pickle would send the whole memory that the batch is a
    view of."""

    stream: pa.Buffer


def pack(rows: pa.RecordBatch) -> Packed:
    """Serializes rows for another process."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return Packed(sink.getvalue())


def unpack(sent: Any) -> Any:
    """Deserializes packed rows; returns anything else unchanged."""
    return pa.ipc.open_stream(sent.stream).read_next_batch() if isinstance(sent, Packed) else sent


def pack_function(function: Callable[[pa.RecordBatch], Any], name: str) -> bytes:
    """Pickles the transform. Raises ValueError if it cannot be pickled."""
    try:
        return pickle.dumps(function)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(
            f"transform {name} can't be sent to another process ({error}): define it at the top level of a module, or"
            " use transform_threads"
        ) from error


def pool(processes: int, function: bytes) -> ProcessPoolExecutor:
    """Creates processes that run a packed function. They are spawned: gRPC's threads do not survive a fork."""
    if multiprocessing.current_process().daemon:
        raise TransformError(
            f"transform_processes = {processes} in a daemonic process, such as a worker of torch's DataLoader, which"
            " may not start others: use transform_threads there, or more workers"
        )
    context = multiprocessing.get_context("spawn")
    return Pool(processes, mp_context=context, initializer=_begin, initargs=(function,))


class Pool(ProcessPoolExecutor):
    """A ProcessPoolExecutor whose shutdown does not wait for functions that take long."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """As ProcessPoolExecutor's, but kills the processes that are still at work after LAST_SECONDS."""
        # Before Python 3.14, with its kill_workers(), the base class has no public way to reach its processes.
        children = list((self._processes or {}).values())
        super().shutdown(wait=False, cancel_futures=cancel_futures)
        end = time.monotonic() + LAST_SECONDS
        while children and (left := end - time.monotonic()) > 0:
            wait_for([child.sentinel for child in children], left)
            children = [child for child in children if child.is_alive()]
        for child in children:
            child.kill()
        super().shutdown(wait=wait)


def apply(sent: Packed) -> Any:
    """Runs in the child: applies the function to packed rows and packs the result."""
    rows = unpack(sent)
    try:
        result = _function()(rows)
    except Exception as error:
        raise _picklable(error) from error
    return pack(result) if isinstance(result, pa.RecordBatch) else result


def _begin(function: bytes) -> None:
    _child["packed"] = function
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and shuts down the pool
    threading.Thread(target=_end_with_parent, name="datacache-parent", daemon=True).start()


def _end_with_parent() -> None:
    """Exits with the parent: a killed parent does not shut down its pool, whose children would wait for ever."""
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os._exit(1)


def _function() -> Callable[[pa.RecordBatch], Any]:
    if "function" not in _child:
        _child["function"] = pickle.loads(_child["packed"])
    return _child["function"]


def _picklable(error: Exception) -> Exception:
    """The error, or a RuntimeError with its message if it cannot be pickled, which would break the pool."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
