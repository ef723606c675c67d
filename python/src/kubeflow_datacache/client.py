# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the readers of a cache need of its client: DataCache is one, and knows the readers that it makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from kubeflow_datacache.answer import Answer
from kubeflow_datacache.dataset import Dataset
from kubeflow_datacache.flow.exchange import Calls
from kubeflow_datacache.flow.retry import Patience
from kubeflow_datacache.h2.reader import Chunks
from kubeflow_datacache.stop import Stop


class StreamClient(Protocol):
    """What streams of rows are opened with."""

    endpoint: str
    patience: Patience

    def ask(self, request: Mapping[str, Any], stop: Stop | None = None) -> Answer:
        """The head's answer to a CMD descriptor (docs/contract.md); stop, once set, ends the waiting."""
        ...

    def stream(self, location: str, ticket: bytes, batch_bytes: int) -> Chunks:
        """A reader of one DoGet stream with batches of about batch_bytes, opened by its first read."""
        ...


class Reader(Protocol):
    """What reads from a cache and is closed with it."""

    def close(self) -> None:
        """Ends what runs."""
        ...


class Client(StreamClient, Protocol):
    """What loaders and tables are made with."""

    @property
    def dataset(self) -> Dataset:
        """What is served now."""
        ...

    def named(self, columns: Sequence[str]) -> list[str]:
        """The columns, all of which are served: ColumnError for one that is not."""
        ...

    def wait(self, *, progress: bool = False) -> Mapping[str, Any]:
        """Waits until the cache is loaded; progress: whether that is shown."""
        ...

    def exchange(self, location: str, ticket: bytes) -> Calls:
        """An open DoExchange with a data node, for rows by index."""
        ...

    def register(self, reader: Reader) -> None:
        """Closes the reader with the cache, and before the interpreter ends."""
        ...
