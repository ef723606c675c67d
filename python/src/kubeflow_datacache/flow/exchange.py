# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows by index from one data node, over one DoExchange that stays open."""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.flight as fl

from kubeflow_datacache import fork

REQUEST: Final = pa.schema([("row", pa.int64())])  # the schema of a request: row indices
_MOST_ROWS: Final = 100_000  # of one request; the server takes 500,000 if it has the memory
_MOST_BYTES: Final = 16 << 20  # of one answer, by the mean row; the server refuses over a quarter of its free memory


class Calls(Protocol):
    """One open DoExchange call: h2.Exchange, or GrpcExchange."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Sends a request."""
        ...

    def read(self) -> pa.RecordBatch:
        """The next answer."""
        ...

    def cancel(self) -> None:
        """Makes a waiting read raise. Safe from any thread."""
        ...

    def close(self) -> None:
        """Ends the exchange."""
        ...


class GrpcExchange:
    """A DoExchange by pyarrow's Flight client."""

    def __init__(self, client: fl.FlightClient, ticket: bytes, options: fl.FlightCallOptions) -> None:
        self._writer, self._reader = map(
            fork.keep, client.do_exchange(fl.FlightDescriptor.for_command(ticket), options)
        )
        self._writer.begin(REQUEST)

    def write(self, batch: pa.RecordBatch) -> None:
        """Sends a request."""
        self._writer.write_batch(batch)

    def read(self) -> pa.RecordBatch:
        """The next answer."""
        return self._reader.read_chunk().data

    def cancel(self) -> None:
        """Makes what waits raise."""
        self._reader.cancel()

    def close(self) -> None:
        """Ends the exchange."""
        self._reader.cancel()
        self._writer.close()


class Exchange:
    """Asks one data node for rows it holds; ask, then answer with as many rows. Not for concurrent use but cancel.

    row_bytes: Arrow bytes of a row, about.
    """

    def __init__(self, calls: Calls, row_bytes: float) -> None:
        self._calls = calls
        self._most = max(1, min(_MOST_ROWS, int(_MOST_BYTES / row_bytes)))
        self._asked: list[npt.NDArray[np.int64]] = []

    def ask(self, rows: npt.NDArray[np.int64]) -> None:
        """Sends the first request for rows (int64 indices); the rest follows as answers come."""
        self._asked = [rows[i : i + self._most] for i in range(0, len(rows), self._most)]
        self._send(0)

    def answer(self, count: int) -> list[pa.RecordBatch]:
        """The rows that were asked for, count in all, in the order asked."""
        out: list[pa.RecordBatch] = []
        for i in range(len(self._asked)):
            out.append(self._calls.read())
            self._send(i + 1)
        if (got := sum(part.num_rows for part in out)) != count:
            raise pa.ArrowException(f"a data node answered {got} rows where {count} were asked for")
        return out

    def cancel(self) -> None:
        """Makes an ask or answer that waits raise, from any thread."""
        self._calls.cancel()

    def close(self) -> None:
        """Ends the exchange."""
        self._calls.close()

    def _send(self, index: int) -> None:
        if index < len(self._asked):
            self._calls.write(pa.record_batch([pa.array(self._asked[index])], schema=REQUEST))
