# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Table: a map-style dataset that fetches rows by index over DoExchange."""

from __future__ import annotations

import contextlib
import operator
import os
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kubeflow_datacache.arguments import check_callable
from kubeflow_datacache.client import Client
from kubeflow_datacache.codes import CALL_ERRORS
from kubeflow_datacache.errors import DataCacheError, DatasetChangedError
from kubeflow_datacache.fetch.exchange import RowFetcher
from kubeflow_datacache.fetch.retry import Attempts
from kubeflow_datacache.flight_info import FlightInfo
from kubeflow_datacache.notebook import html_table
from kubeflow_datacache.rows.gather import Gather, concatenate, detach_small
from kubeflow_datacache.rows.indexing import is_row, rows_of
from kubeflow_datacache.stop import Stop


class Table:
    """The cache's rows by index, in any order. Create it with DataCache.table, and close it.

    Works with torch.utils.data.DataLoader, which requests all rows of a batch at once (__getitems__). Its collate_fn
    gets the transform's result, or the record batch if there is no transform, of which torch's own makes tensors.

    Safe for concurrent use (calls are serialized). Picklable; each process has its own connections.
    """

    def __init__(
        self,
        cache: Client,
        *,
        columns: Sequence[str] | None = None,
        transform: Callable[[pa.RecordBatch], Any] | None = None,
    ) -> None:
        self._cache, self._transform = cache, check_callable(transform)
        self._columns = None if columns is None else cache.check_columns(columns)
        self._dataset = cache.dataset
        self._reset()
        cache.register(self)

    def __len__(self) -> int:
        return self._dataset.rows

    def __repr__(self) -> str:
        return f"Table({self._cache.endpoint!r}, {len(self)} rows)"

    def _repr_html_(self) -> str:
        """HTML for notebooks: the number of rows and the columns."""
        columns = "all" if self._columns is None else ", ".join(self._columns)
        return html_table("Table", [("rows", f"{len(self):,}"), ("columns", columns)])

    def __getitem__(self, index: SupportsIndex | slice | Iterable[SupportsIndex]) -> Any:
        """One row: the transform's result, or without a transform a dict of Python values.

        For a slice, a mask or several integers, like __getitems__.
        """
        if not is_row(index):
            return self.__getitems__(index)  # pyright: ignore[reportArgumentType] - is_row
        rows = self.__getitems__([operator.index(index)])  # pyright: ignore[reportArgumentType] - is_row
        return rows if self._transform is not None else rows.to_pylist()[0]

    def __getitems__(self, indices: slice | Iterable[SupportsIndex]) -> Any:
        """The rows in the requested order, duplicates included, as one record batch, or as the transform's result.

        Slices, boolean masks (one value per row of the table) and negative indices work as in numpy. Raises IndexError
        for rows outside the table and for masks of another length.
        """
        rows = self._rows(rows_of(indices, len(self)))
        if self._transform is not None:
            return self._transform(rows)
        if "torch.utils.data" in sys.modules:
            pass  # registers the type with torch's default collate_fn
        return rows

    def __getstate__(self) -> dict[str, Any]:
        return {k: getattr(self, k) for k in ("_cache", "_transform", "_columns", "_dataset")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def close(self) -> None:
        """Closes the connections to the data nodes; calls in progress raise. Using the table again opens new ones."""
        self._leave_parent()
        stop, self._stop = self._stop, Stop()
        stop.set()
        with self._lock:
            self._drop()

    def _rows(self, rows: npt.NDArray[np.int64]) -> pa.RecordBatch:
        self._leave_parent()
        stop = self._stop
        what = f"take rows from the cache at {self._cache.endpoint}"
        attempts = Attempts(what, self._cache.retry_seconds, stop, from_now=True)
        with self._lock, stop.cancelling(self._cancel):
            while not stop.is_set():
                try:
                    return self._take(self._open(stop, attempts), rows)
                except CALL_ERRORS as error:
                    self._drop()
                    if not stop.is_set():
                        attempts.failed(error)
        raise DataCacheError("the table was closed while it read")

    def _cancel(self) -> None:
        for fetcher in list(self._fetchers.values()):
            fetcher.cancel()

    def _take(self, info: FlightInfo, rows: npt.NDArray[np.int64]) -> pa.RecordBatch:
        numbers = info.placement.numbers(rows)
        owner = np.searchsorted([end for _, end in info.placement.bounds], numbers, side="right")
        wanted = {int(node): np.flatnonzero(owner == node) for node in np.unique(owner)}
        for node, places in wanted.items():
            self._fetchers[node].request(numbers[places] + info.placement.first)
        parts = [part for node, places in wanted.items() for part in self._fetchers[node].receive(len(places))]
        if len(wanted) < 2:
            together = concatenate(parts, info.schema)
            return detach_small(together) if len(parts) == 1 else together
        return Gather(parts, np.concatenate(list(wanted.values()))).batch()

    def _open(self, stop: Stop, attempts: Attempts) -> FlightInfo:
        if self._info is None:
            request: dict[str, Any] = {"kind": "take"}
            if self._columns is not None:
                request["columns"] = self._columns
            info = self._cache.get_flight_info(request, stop, attempts)
            if info.dataset.fingerprint != self._dataset.fingerprint:
                raise DatasetChangedError(
                    f"the cache at {self._cache.endpoint} now serves another dataset: fingerprint"
                    f" {info.dataset.fingerprint}, this one began with {self._dataset.fingerprint}. Indices of one"
                    " mean nothing in the other: make a new table or TableDataset, or start the cache with the"
                    " snapshot pinned"
                )
            for endpoint in info.endpoints:
                exchange = self._cache.exchange(endpoint.location, endpoint.ticket)
                self._fetchers[endpoint.node] = RowFetcher(exchange, info.row_bytes)
            self._info = info
        return self._info

    def _drop(self) -> None:
        fetchers, self._fetchers, self._info = self._fetchers, {}, None
        for fetcher in fetchers.values():
            with contextlib.suppress(*CALL_ERRORS):
                fetcher.close()

    def _leave_parent(self) -> None:
        """In a forked child: drops the parent's connections and lock."""
        if self._process != os.getpid():
            self._reset()

    def _reset(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._stop = Stop()
        self._fetchers: dict[int, RowFetcher] = {}
        self._info: FlightInfo | None = None
