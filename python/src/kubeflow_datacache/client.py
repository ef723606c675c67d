# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Protocols that decouple loaders and tables from DataCache, which implements them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from kubeflow_datacache.dataset import Dataset
from kubeflow_datacache.fetch.exchange import Exchange
from kubeflow_datacache.fetch.retry import Attempts
from kubeflow_datacache.flight_info import FlightInfo
from kubeflow_datacache.h2.reader import ChunkReader
from kubeflow_datacache.order.split import Split
from kubeflow_datacache.stop import Stop


class StreamClient(Protocol):
    """Opens streams of rows."""

    endpoint: str
    retry_seconds: float

    @property
    def described(self) -> FlightInfo:
        """The description of the rows, requested once."""
        ...

    def get_flight_info(
        self, request: Mapping[str, Any], stop: Stop | None = None, attempts: Attempts | None = None
    ) -> FlightInfo:
        """Calls GetFlightInfo with a CMD descriptor (docs/contract.md); setting `stop` ends the retries."""
        ...

    def stream(self, location: str, ticket: bytes, batch_bytes: int, ahead_bytes: int = 0) -> ChunkReader:
        """A reader of one DoGet stream with batches of about batch_bytes, of which about ahead_bytes are kept; its
        first read opens the stream."""
        ...

    def read_packs(
        self, request: Mapping[str, Any], stop: Stop | None = None
    ) -> tuple[pa.RecordBatch, dict[str, Any]] | None:
        """Asks the head for packs (docs/contract.md); None if it does not plan windows of so many rows."""
        ...

    def exchange(self, location: str, ticket: bytes) -> Exchange:
        """Opens a DoExchange call with a data node, to fetch rows by index."""
        ...


class Closable(Protocol):
    """A loader or table that is closed together with its cache."""

    def close(self) -> None:
        """Stops all reads and threads."""
        ...


class Source(Protocol):
    """What a loader reads: a DataCache, a Selection from one, or a Mixture of several."""

    endpoint: str

    @property
    def dataset(self) -> Dataset:
        """The dataset that the cache serves now."""
        ...

    def check_columns(self, columns: Sequence[str]) -> list[str]:
        """Returns the column names as a list. Raises ColumnError for a column that the cache does not serve."""
        ...

    def wait(self, *, progress: bool = False, early: bool = False) -> Mapping[str, Any]:
        """Waits until the cache is loaded, or with early until its rows can be read. progress: whether to show the
        load's progress."""
        ...

    def register(self, reader: Closable) -> None:
        """Registers a reader to be closed together with the cache."""
        ...

    def select(self, *, filter: str | None = None, split: Split | None = None) -> Source:
        """The rows that a filter and a split leave."""
        ...


class Client(StreamClient, Source, Protocol):
    """Client used by tables."""

    def select(self, *, filter: str | None = None, split: Split | None = None) -> Client:
        """The rows that a filter and a split leave."""
        ...
