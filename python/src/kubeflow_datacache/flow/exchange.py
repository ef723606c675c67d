# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows by index from one data node, over one DoExchange that stays open."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.flight as fl

from kubeflow_datacache import fork

_REQUEST: Final = pa.schema([("row", pa.int64())])
_MOST_ROWS: Final = 100_000  # of one request; the server takes 500,000 if it has the memory
_MOST_BYTES: Final = 16 << 20  # of one answer, by the mean row; the server refuses over a quarter of its free memory


class Exchange:
    """Asks one data node for rows it holds; ask, then answer with as many rows. Not for concurrent use."""

    def __init__(self, client: fl.FlightClient, ticket: bytes, row_bytes: float) -> None:
        self._writer, self._reader = map(fork.keep, client.do_exchange(fl.FlightDescriptor.for_command(ticket)))
        self._writer.begin(_REQUEST)
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
            out.append(self._reader.read_chunk().data)
            self._send(i + 1)
        if (got := sum(part.num_rows for part in out)) != count:
            raise pa.ArrowException(f"a data node answered {got} rows where {count} were asked for")
        return out

    def close(self) -> None:
        """Ends the exchange."""
        self._reader.cancel()
        self._writer.close()

    def _send(self, index: int) -> None:
        if index < len(self._asked):
            self._writer.write_batch(pa.record_batch([pa.array(self._asked[index])], schema=_REQUEST))
