# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Table: rows by position over DoExchange, in the table's order or in an order of one's own."""

from __future__ import annotations

import contextlib
import copy
import importlib
import json
import operator
import os
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, Self, SupportsIndex

import numpy as np
import pyarrow as pa

from kubeflow_datacache.arguments import check_callable, check_int, check_path
from kubeflow_datacache.client import Client
from kubeflow_datacache.codes import CALL_ERRORS
from kubeflow_datacache.errors import DataCacheError, DatasetChangedError, StateError
from kubeflow_datacache.fetch.exchange import RowFetcher
from kubeflow_datacache.fetch.feed import narrowed
from kubeflow_datacache.fetch.retry import Attempts
from kubeflow_datacache.flight_info import FlightInfo
from kubeflow_datacache.notebook import html_table
from kubeflow_datacache.order.epoch import Epoch
from kubeflow_datacache.order.feistel import LIMIT
from kubeflow_datacache.order.split import Split
from kubeflow_datacache.rows.gather import Gather, concatenate, detach_small
from kubeflow_datacache.rows.indexing import RowIndices, is_row, rows_of
from kubeflow_datacache.rows.widen import widened
from kubeflow_datacache.stop import Stop

_Transform = Callable[[pa.RecordBatch], Any]
_FILE: Final = b"kubeflow_datacache.Table"  # key of the metadata of a saved file
_VERSION: Final = 1
_CONNECTIONS: Final = {"_process", "_lock", "_stop", "_fetchers", "_info"}  # attributes that a copy has of its own


class Table:
    """Rows of a cache by position: all of them in the cache's order, or filtered, split, shuffled, or by a list.

        train = cache.table().filter("label >= 1").split(Split(of=10, start=0, stop=9)).shuffle(seed=7)
        train[[0, 1, 2]]

    Immutable: filter, split, shuffle, order, select and transform return a new table, and their arguments count the
    positions of the one they are called on. filter and split come before shuffle and order. A shuffled order takes no
    memory.

    Works with torch.utils.data.DataLoader, which requests all rows of a batch at once (__getitems__). Its collate_fn
    gets the transform's result, or the record batch if there is no transform, of which torch's own makes tensors.

    Create it with DataCache.table, and close it, or close the cache. Safe for concurrent use (calls are serialized).
    Picklable; each table, in each process, has its own connections.
    """

    def __init__(
        self, cache: Client, *, columns: Sequence[str] | None = None, transform: _Transform | None = None
    ) -> None:
        self._cache, self._transform = cache, check_callable(transform)
        self._columns = None if columns is None else cache.check_columns(columns)
        self._dataset = cache.dataset
        self._order: RowIndices | None = None  # the row at each position before the shuffle; None: in their order
        self._shuffled: tuple[int, int, int, int] | None = None  # seed, clump, epoch and window
        self._reset()

    def __len__(self) -> int:
        return self._dataset.rows if self._order is None else len(self._order)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}: {value}' for name, value in self._shown())})"

    def _repr_html_(self) -> str:
        """HTML for notebooks: what the rows are, their number and the columns."""
        return html_table(type(self).__name__, self._shown())

    def filter(self, condition: str) -> Self:
        """Only the rows for which a condition is true as well; see DataCache.select. Raises RefusedError if the cache
        does not accept it."""
        self._unordered("filter")
        return self._of(self._cache.select(filter=condition))

    def split(self, split: Split) -> Self:
        """Only the rows of a split."""
        self._unordered("split")
        return self._of(self._cache.select(split=split))

    def shuffle(self, seed: int, *, clump: int = 1, window: int = 0, epoch: int = 0) -> Self:
        """In the shuffled order of a loader's epoch with this seed, clump and window. Replaces an earlier shuffle."""
        seed, epoch = check_int("seed", seed, 0, 1 << 64), check_int("epoch", epoch, 0, 1 << 64)
        clump, window = check_int("clump", clump, 1, LIMIT), check_int("window", window, 0, LIMIT)
        return self._with(_shuffled=(seed, clump, epoch, window))

    def order(self, positions: slice | Iterable[SupportsIndex]) -> Self:
        """The rows at these positions, in that order. Slices, masks, negative numbers and duplicates work as in numpy.

        Keeps 8 bytes for each row. Raises IndexError for positions outside.
        """
        return self._with(_order=self._rows_at(rows_of(positions, len(self))), _shuffled=None)

    def select(self, columns: Sequence[str]) -> Self:
        """With these columns only, in this order."""
        return self._with(_columns=self._cache.check_columns(columns))

    def transform(self, function: _Transform | None) -> Self:
        """With a function of the record batch of the rows; __getitems__ returns its result. None: the batch itself."""
        return self._with(_transform=check_callable(function))

    def table(self, *, columns: Sequence[str] | None = None, transform: _Transform | None = None) -> Self:
        """With other columns and another transform, where they are given; so that a TableDataset takes a table as it
        takes a cache."""
        own = self if columns is None else self.select(columns)
        return own if transform is None else own.transform(transform)

    def __getitem__(self, index: SupportsIndex | slice | Iterable[SupportsIndex]) -> Any:
        """One row: the transform's result, or without a transform a dict of Python values.

        For a slice, a mask or several integers, like __getitems__.
        """
        if not is_row(index):
            return self.__getitems__(index)  # pyright: ignore[reportArgumentType] - is_row
        rows = self.__getitems__([operator.index(index)])  # pyright: ignore[reportArgumentType] - is_row
        return rows if self._transform is not None else rows.to_pylist()[0]

    def __getitems__(self, positions: slice | Iterable[SupportsIndex]) -> Any:
        """The rows at these positions, in that order, as one record batch, or as the transform's result.

        Slices, boolean masks (one value per row of the table), negative numbers and duplicates work as in numpy. Raises
        IndexError for rows outside the table and for masks of another length.
        """
        rows = self._rows(self._rows_at(rows_of(positions, len(self))))
        if self._transform is not None:
            return self._transform(rows)
        if "torch.utils.data" in sys.modules:  # torch's default collate_fn learns the type
            importlib.import_module("kubeflow_datacache.torch.batch")
        return rows

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in _CONNECTIONS}

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

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the selection, the order and the columns, but neither values nor the transform, to an Arrow file."""
        state = {
            "version": _VERSION,
            "dataset": asdict(self._dataset),
            "columns": self._columns,
            "ordered": self._order is not None,
            "shuffle": self._shuffled,
        }
        rows = pa.record_batch({"row": pa.array([] if self._order is None else self._order, pa.int64())})
        rows = rows.replace_schema_metadata({_FILE: json.dumps(state).encode()})
        part = Path(f"{check_path('path', path)}.part")
        with pa.ipc.new_file(str(part), rows.schema) as writer:
            writer.write_batch(rows)
        part.replace(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], cache: Client, *, transform: _Transform | None = None) -> Self:
        """Reads a file that save() wrote. cache: a DataCache of the same table and snapshot.

        Raises StateError if the file is no saved table, or the cache serves other rows.
        """
        with pa.ipc.open_file(str(path)) as reader:
            saved = json.loads((reader.schema.metadata or {}).get(_FILE, b"{}"))
            if saved.get("version") != _VERSION:
                raise StateError(f"{os.fspath(path)}: no table that this release of kubeflow-datacache saved")
            rows = reader.read_all().column("row").to_numpy()
        then, split = saved["dataset"], saved["dataset"]["split"]
        source = cache.select(filter=then["row_filter"] or None, split=Split(**split) if split else None)
        for name, now in asdict(source.dataset).items():
            if now != then.get(name):
                raise StateError(
                    f"{os.fspath(path)}: {name} = {then.get(name)!r}, but the cache at {cache.endpoint} has"
                    f" {now!r}: its row numbers mean nothing there. Make the table anew"
                )
        own = cls(source, columns=saved["columns"], transform=transform)
        shuffled = None if saved["shuffle"] is None else tuple(saved["shuffle"])
        return own._with(_order=rows if saved["ordered"] else None, _shuffled=shuffled)

    def _of(self, cache: Client) -> Self:
        """The rows of a selection; asks the cache for their number."""
        return self._with(_cache=cache, _dataset=cache.dataset)

    def _with(self, **changed: Any) -> Self:
        """A copy with other attributes and connections of its own."""
        other = copy.copy(self)
        other.__dict__.update(changed)
        return other

    def _unordered(self, method: str) -> None:
        """Raises ValueError if there is an order already, whose positions would change."""
        if self._order is not None or self._shuffled is not None:
            raise ValueError(f"{method} after shuffle or order: call it before them")

    def _shown(self) -> list[tuple[str, str]]:
        columns = "all" if self._columns is None else ", ".join(self._columns)
        shown = [("source", repr(self._cache)), ("rows", f"{len(self):,}"), ("columns", columns)]
        if self._order is not None:
            shown.append(("order", "by positions"))
        if self._shuffled is not None:
            shown.append(("shuffle", "seed {}, clump {}, epoch {}, window {}".format(*self._shuffled)))
        return shown

    def _rows_at(self, positions: RowIndices) -> RowIndices:
        """The rows of the dataset at positions."""
        if self._shuffled is not None:
            seed, clump, number, window = self._shuffled
            order = Epoch(rows=len(self), seed=seed, clump=clump, window=window, number=number, global_batch=1)
            positions = order.rows_at(positions.astype(np.uint64)).view(np.int64)
        return positions if self._order is None else self._order[positions]

    def _rows(self, rows: RowIndices) -> pa.RecordBatch:
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

    def _take(self, info: FlightInfo, rows: RowIndices) -> pa.RecordBatch:
        numbers = info.placement.numbers(rows)
        owner = np.searchsorted([end for _, end in info.placement.bounds], numbers, side="right")
        wanted = {int(node): np.flatnonzero(owner == node) for node in np.unique(owner)}
        for node, places in wanted.items():
            self._fetchers[node].request(numbers[places] + info.placement.first)
        parts = [part for node, places in wanted.items() for part in self._fetchers[node].receive(len(places))]
        if len(wanted) < 2:
            together = concatenate(parts, info.schema)
            return widened(detach_small(together) if len(parts) == 1 else together, info.schema)
        return widened(Gather(parts, np.concatenate(list(wanted.values()))).batch(), info.schema)

    def _open(self, stop: Stop, attempts: Attempts) -> FlightInfo:
        if self._info is None:
            request: dict[str, Any] = {"kind": "take"}
            if self._columns is not None:
                request["columns"] = self._columns
            info = self._cache.get_flight_info(narrowed(self._cache, request), stop, attempts)
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
        self._cache.register(self)
