# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""What can be read: a cache's rows, or a selection of them by filter and split."""

from __future__ import annotations

import abc
import contextlib
import difflib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Self, Unpack, overload

import pyarrow as pa

from kubeflow_datacache.arguments import check_int, column_names, length_of
from kubeflow_datacache.balancing import BalancedLoader
from kubeflow_datacache.client import Client, Closable
from kubeflow_datacache.dataset import Dataset
from kubeflow_datacache.errors import ColumnError
from kubeflow_datacache.fetch.exchange import Exchange
from kubeflow_datacache.fetch.retry import Attempts
from kubeflow_datacache.flight_info import FlightInfo
from kubeflow_datacache.h2.reader import ChunkReader
from kubeflow_datacache.loader import Loader
from kubeflow_datacache.notebook import html_table
from kubeflow_datacache.options import LoaderOptions, check_selection, explicit_signature
from kubeflow_datacache.order.pack import Pack
from kubeflow_datacache.order.split import Split
from kubeflow_datacache.packing import PackLoader, PackOptions
from kubeflow_datacache.stop import Stop
from kubeflow_datacache.table import Table

_FEATURES: Final = b"huggingface"  # key of the schema's metadata


class Readable(Client, abc.ABC):
    """Rows that loaders and tables read: a DataCache, or a Selection from one."""

    @property
    @abc.abstractmethod
    def described(self) -> FlightInfo:
        """The description of the rows, requested once."""

    @property
    def dataset(self) -> Dataset:
        """The rows' identity: table, snapshot, fingerprint and number of rows.

        Requested once and then cached. It is requested again after any response that names another dataset, so loaders
        and tables created from then on read the new one.
        """
        return self.described.dataset

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of all columns that the cache serves."""
        return self.described.schema

    def __len__(self) -> int:
        return self.dataset.rows

    def class_names(self, column: str) -> list[str]:
        """The names of the classes whose numbers a column has, as the library datasets wrote them into the files.

        Raises ColumnError for a column without them.
        """
        (name,) = self.check_columns([column])
        stored = json.loads((self.schema.metadata or {}).get(_FEATURES, b"{}"))
        feature = stored.get("info", {}).get("features", {}).get(name, {})
        while isinstance(feature, dict) and "feature" in feature:  # a list of classes
            feature = feature["feature"]
        if not isinstance(feature, dict) or not isinstance(names := feature.get("names"), list):
            raise ColumnError(
                f"column {name!r}: the files name no classes for it; datasets writes those of a ClassLabel"
            )
        return names

    def head(self, rows: int = 5, *, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """The first rows, or all rows if there are fewer; .to_pandas() displays them as a table."""
        count = min(check_int("rows", rows, 0), len(self))
        with contextlib.closing(self.table(columns=columns)) as reader:
            return reader.__getitems__(range(count))

    def check_columns(self, columns: Sequence[str]) -> list[str]:
        """Returns the column names as a list. Raises ColumnError for a column that the cache does not serve."""
        there = self.schema.names
        names = column_names(columns)
        if names is None:
            raise TypeError("columns = None: want a list of names")
        for name in names:
            if name not in there and length_of(name) not in there:
                close = difflib.get_close_matches(name, there, 1)
                meant = f"; did you mean {close[0]!r}?" if close else ""
                raise ColumnError(f"columns: {name!r} is no column that the cache serves; there are {there}{meant}")
        return names

    @overload
    def loader(self, *, pack: Pack, **options: Unpack[PackOptions]) -> PackLoader: ...

    @overload
    def loader(self, *, pack: None = None, balance: str | None = None, **options: Unpack[LoaderOptions]) -> Loader: ...

    @explicit_signature
    def loader(self, *, pack: Pack | None = None, balance: str | None = None, **options: Any) -> Loader:
        """A Loader of this rank's batches; LoaderOptions describes the parameters.

        pack: makes packs of tokens, in a PackLoader, whose parameters are PackOptions. balance: a column of lists or
        text, by whose lengths each step is divided among ranks, so that all have as much work: a BalancedLoader.
        """
        if pack is not None and balance is not None:
            raise ValueError("balance with pack: leave it out, packs are balanced")
        if balance is not None:
            return BalancedLoader(self, balance, **options)
        return Loader(self, **options) if pack is None else PackLoader(self, pack, **options)

    def table(
        self, *, columns: Sequence[str] | None = None, transform: Callable[[pa.RecordBatch], Any] | None = None
    ) -> Table:
        """A Table, for access to rows by position, at first in the cache's order."""
        return Table(self, columns=columns, transform=transform)

    @abc.abstractmethod
    def select(self, *, filter: str | None = None, split: Split | None = None) -> Selection:
        """The rows for which `filter` is true, and of those the ones in `split`.

        filter: a condition in the SQL that caches take, over columns that the cache serves (docs/use.md). The cache
        finds the rows once, and every job that asks the same shares the result. Raises RefusedError, with the reason,
        when the rows are first needed, if the cache does not accept the filter.
        """


class Selection(Readable):
    """The rows of a cache that a filter and a split leave; made by DataCache.select.

    Has loaders and tables like a cache, and can be a part of a Mixture. Rows are numbered from 0 in the order of the
    table, or with a shuffled split in the order of the split. Picklable, as it holds no rows and no connections; those
    are of the cache, which the caller closes.
    """

    def __init__(self, cache: Client, *, filter: str | None = None, split: Split | None = None) -> None:
        self.filter, self.split = check_selection(filter, split)
        self.endpoint, self.retry_seconds = cache.endpoint, cache.retry_seconds
        self._cache = cache
        self._described: FlightInfo | None = None

    def __repr__(self) -> str:
        return f"Selection({self.endpoint!r}, filter={self.filter!r}, split={self.split!r})"

    def _repr_html_(self) -> str:
        """HTML for notebooks: filter and split, and the number of rows if it is known. Never connects."""
        shown = [("endpoint", self.endpoint), ("filter", self.filter or ""), ("split", str(self.split or ""))]
        if self._described is not None:
            shown.append(("rows", f"{self._described.dataset.rows:,}"))
        return html_table("Selection", shown)

    @property
    def described(self) -> FlightInfo:
        """The description of the rows, requested once."""
        if self._described is None:
            self._described = self.get_flight_info({"kind": "take"})
        return self._described

    def select(self, *, filter: str | None = None, split: Split | None = None) -> Self:
        """The rows for which `filter` is true as well, and of those the ones in `split`. See DataCache.select.

        Raises ValueError for a selection that has a split: filter first, then split once.
        """
        filter, split = check_selection(filter, split)
        if self.split is not None and (filter is not None or split is not None):
            raise ValueError(f"{self!r} has a split already: filter first, and split once")
        if self.filter is not None and filter is not None:
            filter = f"({self.filter}) AND ({filter})"
        return type(self)(self._cache, filter=filter or self.filter, split=split)

    def get_flight_info(
        self, request: Mapping[str, Any], stop: Stop | None = None, attempts: Attempts | None = None
    ) -> FlightInfo:
        """Calls GetFlightInfo for these rows; see DataCache.get_flight_info."""
        answer = self._cache.get_flight_info(self._selecting(request), stop, attempts)
        if self._described is not None and self._described.dataset != answer.dataset:
            self._described = None
        return answer

    def read_packs(
        self, request: Mapping[str, Any], stop: Stop | None = None
    ) -> tuple[pa.RecordBatch, dict[str, Any]] | None:
        """Asks the head for packs of these rows; see DataCache.read_packs."""
        return self._cache.read_packs(self._selecting(request), stop)

    def _selecting(self, request: Mapping[str, Any]) -> dict[str, Any]:
        own = dict(request)
        if self.filter is not None:
            own["filter"] = self.filter
        if self.split is not None:
            own["split"] = self.split.request()
        return own

    def wait(self, *, progress: bool = False, early: bool = False) -> Mapping[str, Any]:
        """Waits until the cache is loaded and returns its status. See DataCache.wait."""
        return self._cache.wait(progress=progress, early=early)

    def register(self, reader: Closable) -> None:
        """Registers a reader that closing the cache will close."""
        self._cache.register(reader)

    def stream(self, location: str, ticket: bytes, batch_bytes: int, ahead_bytes: int = 0) -> ChunkReader:
        """A reader of one DoGet stream; see DataCache.stream."""
        return self._cache.stream(location, ticket, batch_bytes, ahead_bytes)

    def exchange(self, location: str, ticket: bytes) -> Exchange:
        """Opens a DoExchange call with a data node; see DataCache.exchange."""
        return self._cache.exchange(location, ticket)
