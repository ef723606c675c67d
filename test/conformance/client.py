# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A client of wire contract v1 that uses only pyarrow.flight, as any framework might."""

from __future__ import annotations

import json
import re
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.flight as fl

MOST_BYTES = (4 << 20) + (4 << 20) // 8  # limit of a batch ("about 4 MiB") in Arrow bytes


class Client:
    """Connections to one cache: to the head, and to each data node that it names."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.head = fl.connect(endpoint)
        self._nodes: dict[str, fl.FlightClient] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes every connection."""
        for client in [self.head, *self._nodes.values()]:
            client.close()

    def path(self, *elements: str | bytes | int) -> fl.FlightInfo:
        """GetFlightInfo with a PATH descriptor."""
        return self.head.get_flight_info(path_descriptor(*elements))

    def command(self, body: bytes | None = None, **fields: Any) -> fl.FlightInfo:
        """GetFlightInfo with a CMD descriptor: the given bytes, or the fields as JSON with "v": 1."""
        return self.head.get_flight_info(command_descriptor(body, **fields))

    def node(self, endpoint: fl.FlightEndpoint) -> fl.FlightClient:
        """The connection to an endpoint's data node; an endpoint has exactly one location."""
        (location,) = endpoint.locations
        uri = location.uri.decode() if isinstance(location.uri, bytes) else location.uri
        if uri not in self._nodes:
            self._nodes[uri] = fl.connect(uri)
        return self._nodes[uri]

    def batches(
        self, endpoint: fl.FlightEndpoint, headers: list[tuple[bytes, bytes]] | None = None
    ) -> tuple[pa.Schema, list[pa.RecordBatch]]:
        """Yields the batches of one endpoint, and asserts that each message follows the contract."""
        reader = self.node(endpoint).do_get(endpoint.ticket, fl.FlightCallOptions(headers=headers))
        out: list[pa.RecordBatch] = []
        for chunk in reader:
            assert chunk.data is not None, "a message without a record batch"
            assert chunk.data.num_rows > 0, "a record batch without rows"
            assert chunk.data.schema.equals(reader.schema), "a batch of another schema than the stream's"
            assert chunk.data.num_rows == 1 or chunk.data.nbytes <= MOST_BYTES, f"a batch of {chunk.data.nbytes} bytes"
            out.append(chunk.data)
        return reader.schema, out

    def stream(self, endpoint: fl.FlightEndpoint) -> pa.Table:
        """The rows of one endpoint."""
        schema, batches = self.batches(endpoint)
        return pa.Table.from_batches(batches, schema)

    def read(self, info: fl.FlightInfo) -> pa.Table:
        """The rows of a FlightInfo: the streams of its endpoints, concatenated."""
        streams = [self.stream(endpoint) for endpoint in info.endpoints]
        assert all(s.schema.equals(info.schema) for s in streams), "a stream of another schema than the answer's"
        empty = pa.Table.from_batches([], info.schema)  # Schema.empty_table does not know extension types in structs
        return pa.concat_tables([empty, *streams])

    def table(self, columns: list[str] | None = None) -> pa.Table:
        """All rows in row order."""
        fields: dict[str, Any] = {"columns": columns} if columns else {}
        return self.read(self.command(kind="shard", index=0, total=1, **fields))

    def take(self, endpoint: fl.FlightEndpoint, *requests: list[int]) -> list[pa.Table]:
        """One DoExchange: returns the rows of each request, in the requested order."""
        descriptor = fl.FlightDescriptor.for_command(endpoint.ticket.ticket)
        writer, reader = self.node(endpoint).do_exchange(descriptor)
        out: list[pa.Table] = []
        with writer:
            writer.begin(pa.schema([("row", pa.int64())]))
            for rows in requests:
                writer.write_batch(pa.record_batch([pa.array(rows, pa.int64())], names=["row"]))
                out.append(pa.Table.from_batches([reader.read_chunk().data]))
            writer.done_writing()
        return out

    def status(self) -> dict[str, Any]:
        """DoAction("status")."""
        (result,) = self.head.do_action("status")
        return json.loads(result.body.to_pybytes())


def path_descriptor(*elements: str | bytes | int) -> fl.FlightDescriptor:
    """A PATH descriptor; numbers are written in decimal."""
    return fl.FlightDescriptor.for_path(*[str(e) if isinstance(e, int) else e for e in elements])


def command_descriptor(body: bytes | None = None, **fields: Any) -> fl.FlightDescriptor:
    """A CMD descriptor."""
    return fl.FlightDescriptor.for_command(json.dumps({"v": 1, **fields}).encode() if body is None else body)


def metadata(info: fl.FlightInfo) -> dict[str, Any]:
    """The app_metadata of a FlightInfo, parsed from JSON."""
    return json.loads(info.app_metadata)


def node_of(endpoint: fl.FlightEndpoint) -> int:
    """The data node's index in an endpoint."""
    return json.loads(endpoint.app_metadata)["node"]


_PYARROWS = {"PRECONDITION_FAILED": "FAILED_PRECONDITION", "UNAUTHORIZED": "PERMISSION_DENIED"}  # its names of codes
_GRPC_CODE = re.compile(r"(?:gRPC|Flight) returned ([a-z -]+) error")
_CLASS_CODE = {
    "ArrowInvalid": "INVALID_ARGUMENT",
    "ArrowNotImplementedError": "UNIMPLEMENTED",
    "ArrowKeyError": "NOT_FOUND",
    "FlightUnauthenticatedError": "UNAUTHENTICATED",
    "FlightUnauthorizedError": "PERMISSION_DENIED",
    "FlightUnavailableError": "UNAVAILABLE",
    "FlightTimedOutError": "DEADLINE_EXCEEDED",
    "FlightCancelledError": "CANCELLED",
}


def code_of(error: BaseException) -> str:
    """The gRPC code of a pyarrow.flight exception."""
    if match := _GRPC_CODE.search(str(error)):
        code = re.sub("[ -]", "_", match[1]).upper()
        return _PYARROWS.get(code, code)
    return _CLASS_CODE.get(type(error).__name__, type(error).__name__)
