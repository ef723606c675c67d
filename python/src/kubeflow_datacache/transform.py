# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A user's function over batches, in threads, in order, with errors that say where."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pyarrow as pa

from kubeflow_datacache.batch import Batch
from kubeflow_datacache.errors import TransformError

Function = Callable[[pa.RecordBatch], Any]
_SHOWN = 8


class Transform:
    """Applies a function to batches; with threads > 0 that many at once, else at once and in the caller's thread."""

    def __init__(self, function: Function, threads: int) -> None:
        self._function = function
        self._pool = ThreadPoolExecutor(threads, "datacache-transform") if threads else None

    def start(self, batch: Batch) -> Future[Batch]:
        """Begins with a batch. The future's errors are TransformErrors."""
        if self._pool is not None:
            return self._pool.submit(self._apply, batch)
        done: Future[Batch] = Future()
        try:
            done.set_result(self._apply(batch))
        except TransformError as error:
            done.set_exception(error)
        return done

    def close(self) -> None:
        """Drops what has not begun, and waits for the rest."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def _apply(self, batch: Batch) -> Batch:
        try:
            batch.data = self._function(batch.arrow())
        except Exception as error:
            raise TransformError(
                f"transform {_name(self._function)} raised {type(error).__name__}: {error}; at epoch {batch.epoch},"
                f" step {batch.step}, on {_rows(batch)}"
            ) from error
        if batch.data is None:
            raise TransformError(
                f"transform {_name(self._function)} returned None at epoch {batch.epoch}, step {batch.step}: want a"
                " record batch, or whatever the training code takes from batch.data"
            )
        return batch


def _rows(batch: Batch) -> str:
    shown = ", ".join(map(str, batch.indices[:_SHOWN].tolist()))
    return f"rows [{shown}{', ...' if batch.rows > _SHOWN else ''}] ({batch.rows} rows)"


def _name(function: Function) -> str:
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    return f"{module}.{name}" if name else repr(function)
