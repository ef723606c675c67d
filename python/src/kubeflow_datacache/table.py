# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The table as a map-style dataset: rows by index, over DoExchange."""

from __future__ import annotations

import contextlib
import operator
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kubeflow_datacache.answer import Answer
from kubeflow_datacache.client import Client
from kubeflow_datacache.codes import FAULTS
from kubeflow_datacache.errors import DataCacheError, DatasetChangedError
from kubeflow_datacache.flow.exchange import Exchange
from kubeflow_datacache.flow.retry import Attempts
from kubeflow_datacache.options import function_of
from kubeflow_datacache.rows.gather import Gather, concatenate, detach_small
from kubeflow_datacache.rows.indexing import is_row, rows_of
from kubeflow_datacache.stop import Stop
from kubeflow_datacache.watch.html import as_table


class Table:
    """Rows by index, in any order: a sampler decides. Make it with DataCache.table; close it.

    Fits torch.utils.data.DataLoader, which asks for a batch's rows at once (__getitems__): its collate_fn gets what
    the transform makes of the record batch, or the record batch itself.

    Safe for concurrent use (calls take turns). Pickles; each process has connections of its own.
    """

    def __init__(
        self,
        cache: Client,
        *,
        columns: Sequence[str] | None = None,
        transform: Callable[[pa.RecordBatch], Any] | None = None,
    ) -> None:
        self._cache, self._transform = cache, function_of(transform)
        self._columns = None if columns is None else cache.named(columns)
        self._dataset = cache.dataset
        self._reset()
        cache.register(self)

    def __len__(self) -> int:
        return self._dataset.rows

    def __repr__(self) -> str:
        return f"Table({self._cache.endpoint!r}, {len(self)} rows)"

    def _repr_html_(self) -> str:
        """What notebooks show: how many rows, and of which columns."""
        columns = "all" if self._columns is None else ", ".join(self._columns)
        return as_table("Table", [("rows", f"{len(self):,}"), ("columns", columns)])

    def __getitem__(self, index: SupportsIndex | slice | Iterable[SupportsIndex]) -> Any:
        """One row: what the transform makes of it, or without one a dict of Python values.

        A slice, a mask or several numbers: as __getitems__.
        """
        if not is_row(index):
            return self.__getitems__(index)  # pyright: ignore[reportArgumentType] - is_row
        rows = self.__getitems__([operator.index(index)])  # pyright: ignore[reportArgumentType] - is_row
        return rows if self._transform is not None else rows.to_pylist()[0]

    def __getitems__(self, indices: slice | Iterable[SupportsIndex]) -> Any:
        """The rows in the order asked, duplicates included, as one record batch or what the transform makes of it.

        Slices, masks of bools (one a row of the table) and negative numbers mean what they mean in numpy. IndexError
        for rows outside the table and masks of another length.
        """
        rows = self._rows(rows_of(indices, len(self)))
        return rows if self._transform is None else self._transform(rows)

    def __getstate__(self) -> dict[str, Any]:
        return {k: getattr(self, k) for k in ("_cache", "_transform", "_columns", "_dataset")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def close(self) -> None:
        """Ends the exchanges with the data nodes; a call under way raises. Using it again begins new ones."""
        self._leave_parent()
        stop, self._stop = self._stop, Stop()
        stop.set()
        with self._lock:
            self._drop()

    def _rows(self, rows: npt.NDArray[np.int64]) -> pa.RecordBatch:
        self._leave_parent()
        stop = self._stop
        attempts = Attempts(f"take rows from the cache at {self._cache.endpoint}", self._cache.patience, stop)
        with self._lock, stop.cancelling(self._cancel):
            while not stop.is_set():
                try:
                    return self._take(self._open(stop), rows)
                except FAULTS as error:
                    self._drop()
                    if not stop.is_set():
                        attempts.failed(error)
        raise DataCacheError("the table was closed while it read")

    def _cancel(self) -> None:
        for exchange in list(self._exchanges.values()):
            exchange.cancel()

    def _take(self, answer: Answer, rows: npt.NDArray[np.int64]) -> pa.RecordBatch:
        owner = np.searchsorted([end for _, end in answer.nodes], rows, side="right")
        wanted = {int(node): np.flatnonzero(owner == node) for node in np.unique(owner)}
        for node, places in wanted.items():
            self._exchanges[node].ask(rows[places])
        parts = [part for node, places in wanted.items() for part in self._exchanges[node].answer(len(places))]
        if len(wanted) < 2:
            rows = concatenate(parts, answer.schema)
            return detach_small(rows) if len(parts) == 1 else rows
        return Gather(parts, np.concatenate(list(wanted.values()))).batch()

    def _open(self, stop: Stop) -> Answer:
        if self._answer is None:
            request: dict[str, Any] = {"kind": "take"}
            if self._columns is not None:
                request["columns"] = self._columns
            answer = self._cache.ask(request, stop)
            if answer.dataset.fingerprint != self._dataset.fingerprint:
                raise DatasetChangedError(
                    f"the cache at {self._cache.endpoint} now serves another dataset: fingerprint"
                    f" {answer.dataset.fingerprint}, this one began with {self._dataset.fingerprint}. Indices of one"
                    " mean nothing in the other: make a new table or TableDataset, or start the cache with the"
                    " snapshot pinned"
                )
            for endpoint in answer.endpoints:
                calls = self._cache.exchange(endpoint.location, endpoint.ticket)
                self._exchanges[endpoint.node] = Exchange(calls, answer.row_bytes)
            self._answer = answer
        return self._answer

    def _drop(self) -> None:
        exchanges, self._exchanges, self._answer = self._exchanges, {}, None
        for exchange in exchanges.values():
            with contextlib.suppress(*FAULTS):
                exchange.close()

    def _leave_parent(self) -> None:
        """In a forked child: drops the exchanges, and the lock, which are the parent's."""
        if self._process != os.getpid():
            self._reset()

    def _reset(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._stop = Stop()
        self._exchanges: dict[int, Exchange] = {}
        self._answer: Answer | None = None
