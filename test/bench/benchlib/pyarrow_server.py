# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The C++ reference: pyarrow's FlightServerBase with RecordBatchStream over batches held in memory.

usage: pyarrow_server.py BATCH_ROWS FILE.parquet...

The ticket "INDEX/TOTAL" asks for one of TOTAL equal runs of batches. Every batch lies in memory of
its own, with offsets from zero and without bitmaps, as if it had come from a stream. Prints
"ready URI" when it serves.
"""

from __future__ import annotations

import sys

import pyarrow as pa
import pyarrow.flight as fl
import pyarrow.parquet as pq


class Server(fl.FlightServerBase):  # type: ignore[misc]
    """Answers DoGet from batches that never change; the stream itself runs in C++."""

    def __init__(self, batches: list[pa.RecordBatch]) -> None:
        self._batches = batches
        super().__init__("grpc://127.0.0.1:0")

    def do_get(self, context: fl.ServerCallContext, ticket: fl.Ticket) -> fl.RecordBatchStream:
        index, total = (int(part) for part in ticket.ticket.decode().split("/"))
        lo, hi = (len(self._batches) * i // total for i in (index, index + 1))
        schema = self._batches[0].schema
        return fl.RecordBatchStream(pa.Table.from_batches(self._batches[lo:hi], schema))


def load(files: list[str], batch_rows: int) -> list[pa.RecordBatch]:
    """The files' rows in batches of batch_rows (a file's last one is shorter)."""
    batches = []
    for file in files:
        for batch in pq.ParquetFile(file).iter_batches(batch_rows):
            batches.append(pa.ipc.read_record_batch(batch.serialize(), batch.schema))
    return batches


def main() -> None:
    server = Server(load(sys.argv[2:], int(sys.argv[1])))
    print(f"ready grpc://127.0.0.1:{server.port}", flush=True)
    server.serve()


if __name__ == "__main__":
    main()
