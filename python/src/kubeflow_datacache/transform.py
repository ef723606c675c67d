# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Applies a user's function to batches, in threads or processes. Errors name the step and its rows."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Executor, Future
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Final

import pyarrow as pa

from kubeflow_datacache import processes as child
from kubeflow_datacache.errors import DataCacheError, TransformError
from kubeflow_datacache.rows.batch import Batch, held_bytes, set_data
from kubeflow_datacache.threads import DaemonThreads

Function = Callable[[pa.RecordBatch], Any]
_SHOWN: Final = 8  # number of rows that an error message lists
_MEMORY: Final = 64  # after about this many batches, a single large result no longer affects the size estimate
_BROKEN: Final = (
    "lost one of its processes: look for its own words above, whether memory ran out, and whether the script starts"
    ' training under if __name__ == "__main__";'
)


class Transform:
    """Applies a function to several batches at a time; the results become Batch.data.

    threads: the number of threads; 0 runs the function in the caller's thread, None uses one thread per CPU. processes:
    use this many processes instead; they import the function, and its results must be picklable. Threads and processes
    are started with the first batch and run until close; a batch after that starts new ones. start may be called by one
    thread at a time, cancel and close by any.
    """

    def __init__(self, function: Function, *, threads: int | None = None, processes: int = 0) -> None:
        if threads is not None and threads < 0:
            raise ValueError(f"transform_threads = {threads}: want 0 or more, or None for one a CPU")
        if processes < 0:
            raise ValueError(f"transform_processes = {processes}: want 0 or more, 0 for threads instead")
        if processes and threads is not None:
            raise ValueError(f"transform_threads = {threads} and transform_processes = {processes}: want one of them")
        self._function, self._name = function, _name(function)
        self._threads = _cpus() if threads is None else threads
        self._processes = processes
        self._packed = child.pack_function(function, self._name) if processes else b""
        self._pool: Executor | None = None
        self._begun: set[Future[Any]] = set()
        self.growth: float | None = None  # estimated bytes of result per byte of input; None before the first result
        self._lock = threading.Lock()  # guards _pool; not held while calling the pool

    def start(self, batch: Batch) -> Future[Batch]:
        """Starts to transform a batch. The future's exceptions are TransformErrors."""
        out: Future[Batch] = Future()
        try:
            self._begin(batch, out)
        except Exception as error:
            self._fail(batch, out, error)
        return out

    def leave_parent(self) -> None:
        """In a forked child: drops the pool, whose threads or processes belong to the parent."""
        self._pool, self._begun, self._lock = None, set(), threading.Lock()

    def cancel(self) -> None:
        """Cancels the batches that have not been started; their futures raise DataCacheError."""
        for work in list(self._begun):
            work.cancel()

    def close(self) -> None:
        """Cancels the batches that have not begun, and stops the threads or processes once the others are done."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(cancel_futures=True)

    def _begin(self, batch: Batch, out: Future[Batch]) -> None:
        if self._processes:
            work = self._submit(child.apply, child.pack(batch.arrow()))
        elif self._threads:
            work = self._submit(self._function, batch.arrow())
        else:
            self._finish(batch, out, lambda: self._function(batch.arrow()))
            return
        work.add_done_callback(lambda done: self._finish(batch, out, lambda: child.unpack(done.result())))

    def _submit(self, call: Callable[[Any], Any], argument: Any) -> Future[Any]:
        with self._lock:
            pool = self._pool = self._pool or self._open()
        work = pool.submit(call, argument)
        self._begun.add(work)
        work.add_done_callback(self._begun.discard)
        return work

    def _open(self) -> Executor:
        if self._processes:
            return child.pool(self._processes, self._packed)
        return DaemonThreads(self._threads, "datacache-transform")

    def _finish(self, batch: Batch, out: Future[Batch], result: Callable[[], Any]) -> None:
        try:
            data = result()
        except CancelledError:
            out.set_exception(DataCacheError("the loader was closed before it applied the transform"))
            return
        except Exception as error:
            self._fail(batch, out, error)
            return
        if fault := _fault(batch, data):
            out.set_exception(TransformError(f"transform {self._name} returned {fault[0]} {_at(batch)}: {fault[1]}"))
            return
        set_data(batch, data)
        self._update_growth(held_bytes(batch) / max(1, batch.nbytes))
        out.set_result(batch)

    def _update_growth(self, growth: float) -> None:
        """Updates the estimate: a larger value applies at once, smaller ones only slowly, as a low estimate would use
        more memory."""
        known = self.growth or 0.0
        self.growth = max(growth, known + (growth - known) / _MEMORY)

    def _fail(self, batch: Batch, out: Future[Batch], error: Exception) -> None:
        if isinstance(error, TransformError):
            out.set_exception(error)
            return
        fault = f"raised {type(error).__name__}: {error};"
        if isinstance(error, BrokenProcessPool):
            fault, self._pool = _BROKEN, None  # the pool is broken: the next batch creates a new one
        failure = TransformError(f"transform {self._name} {fault} {_at(batch)}")
        failure.__cause__ = error
        out.set_exception(failure)


def _fault(batch: Batch, data: Any) -> tuple[str, str] | None:
    """What is wrong with a transform's result, and what is expected; None if it is valid."""
    rows = batch.num_rows
    if data is None:
        return "None", "want a record batch, or whatever the training code takes from batch.data"
    if isinstance(data, pa.RecordBatch | pa.Table):
        made = data.num_rows
    elif isinstance(data, Mapping):
        lengths = {_length(column) for column in data.values()}
        made = lengths.pop() if len(lengths) == 1 else None
    else:
        return None
    if made is None or made == rows:
        return None
    return f"{made} rows for {rows}", (
        "want as many rows in a record batch or a mapping of columns. Leave rows out with the cache's filter; return a"
        " list, or an object of your own, for samples that are not one a row"
    )


def _length(column: Any) -> int | None:
    """The number of rows of a column; None if the value is not a column."""
    if isinstance(column, pa.Array | pa.ChunkedArray):
        return len(column)
    shape = getattr(column, "shape", None)
    return int(shape[0]) if shape is not None and len(shape) else None


def _cpus() -> int:
    """The number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _at(batch: Batch) -> str:
    shown = ", ".join(map(str, batch.indices[:_SHOWN].tolist()))
    more = ", ..." if batch.num_rows > _SHOWN else ""
    return f"at epoch {batch.epoch}, step {batch.step}, on rows [{shown}{more}] ({batch.num_rows} rows)"


def _name(function: Function) -> str:
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    return f"{module}.{name}" if name else repr(function)
