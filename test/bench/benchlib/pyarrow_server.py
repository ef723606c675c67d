# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The C++ reference server: pyarrow's FlightServerBase with RecordBatchStream over batches in memory.

usage: pyarrow_server.py [--host HOST | --tls CERT KEY] BATCH_ROWS FILE.parquet...

The ticket "INDEX/TOTAL" requests one of TOTAL equal runs of batches. GetFlightInfo for the path [INDEX, TOTAL] returns
the ticket "FROM+ROWS" for one of TOTAL equal runs of rows. Every batch has memory of its own, with offsets from zero
and without validity bitmaps, as if received from a stream. Prints "ready URI" when it is ready.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as fl
import pyarrow.parquet as pq


class Server(fl.FlightServerBase):  # type: ignore[misc]
    """Serves constant batches; the streams run in C++."""

    def __init__(self, host: str, batches: list[pa.RecordBatch], certificate: tuple[bytes, bytes] | None) -> None:
        self._batches, self._table = batches, pa.Table.from_batches(batches)
        self.uri = f"grpc+tls://{host}" if certificate else f"grpc://{host}"
        super().__init__(f"{self.uri}:0", tls_certificates=[certificate] if certificate else None)
        self.uri += f":{self.port}"

    def get_flight_info(self, context: fl.ServerCallContext, descriptor: fl.FlightDescriptor) -> fl.FlightInfo:
        lo, hi = part(self._table.num_rows, *map(int, descriptor.path))
        endpoint = fl.FlightEndpoint(f"{lo}+{hi - lo}", [self.uri])
        return fl.FlightInfo(self._table.schema, descriptor, [endpoint], hi - lo, -1)

    def do_get(self, context: fl.ServerCallContext, ticket: fl.Ticket) -> fl.RecordBatchStream:
        asked = ticket.ticket.decode()
        if "+" in asked:
            return fl.RecordBatchStream(self._table.slice(*map(int, asked.split("+"))))
        lo, hi = part(len(self._batches), *map(int, asked.split("/")))
        return fl.RecordBatchStream(pa.Table.from_batches(self._batches[lo:hi], self._table.schema))


def part(count: int, index: int, total: int) -> tuple[int, int]:
    """The range (start, end) of one of `total` equal runs of `count` items."""
    return count * index // total, count * (index + 1) // total


def load(files: list[str], batch_rows: int) -> list[pa.RecordBatch]:
    """The rows of the files in batches of batch_rows (the last batch of a file is shorter)."""
    batches = []
    for file in files:
        for batch in pq.ParquetFile(file).iter_batches(batch_rows):
            batches.append(pa.ipc.read_record_batch(batch.serialize(), batch.schema))
    return batches


def main() -> None:
    arguments, host, certificate = sys.argv[1:], "127.0.0.1", None
    if arguments[0] == "--host":
        host, arguments = arguments[1], arguments[2:]
    if arguments[0] == "--tls":
        certificate = (Path(arguments[1]).read_bytes(), Path(arguments[2]).read_bytes())
        arguments = arguments[3:]
    server = Server(host, load(arguments[1:], int(arguments[0])), certificate)
    print(f"ready {server.uri}", flush=True)
    server.serve()


if __name__ == "__main__":
    main()
