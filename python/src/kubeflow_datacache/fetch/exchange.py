# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Fetches rows by index from one data node, over a DoExchange call that stays open."""

from __future__ import annotations

import json
import math
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.flight as fl

from kubeflow_datacache import fork

REQUEST: Final = pa.schema([("row", pa.int64())])  # schema of a request: row indices
_MOST_ROWS: Final = 100_000  # rows per request; the server accepts up to 500,000 if it has enough memory
# estimated bytes per response; the server rejects a response over a quarter of its free memory
_MOST_BYTES: Final = 16 << 20


class Exchange(Protocol):
    """An open DoExchange call, implemented by h2.Exchange and GrpcExchange."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Sends a record batch of row indices."""
        ...

    def read(self) -> tuple[pa.RecordBatch, pa.Buffer | None]:
        """Receives the next response, and its app_metadata."""
        ...

    def cancel(self) -> None:
        """Makes a blocked read raise an exception. Safe from any thread."""
        ...

    def close(self) -> None:
        """Closes the call."""
        ...


class GrpcExchange:
    """A DoExchange call made with pyarrow's Flight client."""

    def __init__(self, client: fl.FlightClient, ticket: bytes, options: fl.FlightCallOptions) -> None:
        self._writer, self._reader = map(
            fork.protect, client.do_exchange(fl.FlightDescriptor.for_command(ticket), options)
        )
        self._writer.begin(REQUEST)

    def write(self, batch: pa.RecordBatch) -> None:
        """Sends a record batch of row indices."""
        self._writer.write_batch(batch)

    def read(self) -> tuple[pa.RecordBatch, pa.Buffer | None]:
        """Receives the next response, and its app_metadata."""
        chunk = self._reader.read_chunk()
        return chunk.data, chunk.app_metadata

    def cancel(self) -> None:
        """Makes a blocked read raise an exception."""
        self._reader.cancel()

    def close(self) -> None:
        """Closes the call."""
        self._reader.cancel()
        self._writer.close()


def busy_seconds(app_metadata: pa.Buffer) -> float:
    """Seconds that the data node worked on a message, from its app_metadata (docs/contract.md, DoGet)."""
    return json.loads(app_metadata.to_pybytes().decode())["busy_us"] / 1e6


class RowFetcher:
    """Fetches rows that one data node holds. After each request(rows), call receive(len(rows)).

    Not safe for concurrent use, except cancel. row_bytes: estimated Arrow bytes per row. busy: the seconds that the
    data node worked on the rows last received; infinite if it does not say.
    """

    def __init__(self, exchange: Exchange, row_bytes: float) -> None:
        self._exchange = exchange
        self._most = max(1, min(_MOST_ROWS, int(_MOST_BYTES / row_bytes)))
        self._requests: list[npt.NDArray[np.int64]] = []
        self.busy = 0.0

    def request(self, rows: npt.NDArray[np.int64]) -> None:
        """Requests rows by int64 index. Sends the first part; receive() sends each further part after a response."""
        self._requests = [rows[i : i + self._most] for i in range(0, len(rows), self._most)]
        self._send(0)

    def receive(self, count: int) -> list[pa.RecordBatch]:
        """Returns the requested rows in the order of the indices; count is their number."""
        out: list[pa.RecordBatch] = []
        self.busy = 0.0
        for i in range(len(self._requests)):
            batch, app_metadata = self._exchange.read()
            self._send(i + 1)
            out.append(batch)
            self.busy += math.inf if app_metadata is None else busy_seconds(app_metadata)
        if (got := sum(part.num_rows for part in out)) != count:
            raise pa.ArrowException(f"a data node answered {got} rows where {count} were asked for")
        return out

    def cancel(self) -> None:
        """Makes a blocked request or receive raise an exception. Safe from any thread."""
        self._exchange.cancel()

    def close(self) -> None:
        """Closes the call."""
        self._exchange.close()

    def _send(self, index: int) -> None:
        if index < len(self._requests):
            self._exchange.write(pa.record_batch([pa.array(self._requests[index])], schema=REQUEST))
