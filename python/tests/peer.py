# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A fake cache in this process that follows wire contract v1 and injects faults; uses pyarrow's Flight server."""

from __future__ import annotations

import bisect
import functools
import json
import random
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.flight as fl
from kit.deadline import pause
from order import Epoch as Oracle
from order import Mixture, permuted

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("vector", pa.list_(pa.int32()))])


def rows_of(indices: list[int]) -> pa.RecordBatch:
    """The table's rows at these indices. All values of a row are derived from its index."""
    ids = np.array(indices, np.int64)
    vectors = (ids[:, None] * 3 + np.arange(3)).astype(np.int32)
    offsets = np.arange(0, 3 * len(ids) + 1, 3, dtype=np.int32)
    columns = [
        pa.array(ids),
        pa.array([f"row {i}" for i in indices], pa.string()),
        pa.ListArray.from_arrays(offsets, pa.array(vectors.reshape(-1))),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


@dataclass
class Faults:
    """The faults to inject."""

    head_seconds: float = 0.0
    server_seconds: float = 0.0  # delay before each message
    silent: bool = False  # whether messages omit the time that the server worked on them
    head_unavailable: int = 0  # the number of requests that the head answers with UNAVAILABLE
    progress: bool = False  # whether each of these answers says that more splits are loaded
    failed: str = ""  # reason of a failed load
    breaks: list[int] = field(default_factory=list)  # the number of rows after which each of the next streams breaks
    short_by: int = 0  # the number of rows that every stream leaves out at its end


@dataclass
class Table:
    """The served table: its rows, divided among nodes, in messages of at most message_rows. The ids begin at first."""

    rows: int
    nodes: list[tuple[int, int]]
    message_rows: int = 7
    first: int = 0
    table_uuid: str = "t-1"
    snapshot: int = 5
    filter: str = ""
    fingerprint: str = "f-1"

    @classmethod
    def random(cls, rows: int, rng: random.Random, most_nodes: int = 4) -> Self:
        """A table on one or more nodes, some of which may be empty."""
        cuts = sorted(rng.randint(0, rows) for _ in range(rng.randint(0, most_nodes - 1)))
        return cls(rows, list(zip([0, *cuts], [*cuts, rows], strict=True)), rng.choice([1, 2, 7, 64]))


class Peer:
    """A head and data nodes on one port. Tests may change table and faults at any time; restart invalidates old
    tickets.

    data_port: the port that the head reports for the data nodes, if not its own.
    """

    def __init__(self, table: Table) -> None:
        self.table, self.faults = table, Faults()
        self.incarnation, self.gone = 1, False
        self.requests: list[dict[str, Any]] = []
        self.lock = threading.Lock()
        self._server = _Server(self)
        self.port = self.data_port = int(self._server.port)
        self.endpoint = f"grpc://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()

    def stop(self) -> None:
        """Stops permanently: running streams break at their next message."""
        with self.lock:
            self.faults.breaks, self.incarnation = [], self.incarnation + 1
            self.gone = True

    def restart(self, nodes: list[tuple[int, int]] | None = None) -> None:
        """Simulates a restart of all processes, optionally with another division of the rows."""
        with self.lock:
            self.incarnation += 1
            if nodes is not None:
                self.table = replace(self.table, nodes=nodes)

    def next_break(self) -> int | None:
        """The number of rows after which a new stream must break; None if it must not."""
        with self.lock:
            return self.faults.breaks.pop(0) if self.faults.breaks else None


class _Server(fl.FlightServerBase):  # pyright: ignore[reportUntypedBaseClass]
    def __init__(self, peer: Peer) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self._peer = peer

    def get_flight_info(self, context: fl.ServerCallContext, descriptor: fl.FlightDescriptor) -> fl.FlightInfo:
        """GetFlightInfo of the head."""
        del context
        peer, request = self._peer, json.loads(descriptor.command)
        pause(peer.faults.head_seconds)
        with peer.lock:
            peer.requests.append(request)
            if peer.faults.head_unavailable:
                peer.faults.head_unavailable -= 1
                done = 28 - peer.faults.head_unavailable if peer.faults.progress else 12
                raise fl.FlightUnavailableError(f"loading 43% ({done}/28 splits)")
            table, incarnation = peer.table, peer.incarnation
        unknown = [c for c in request.get("columns", []) if c not in SCHEMA.names]
        if unknown:
            raise pa.ArrowInvalid(f"columns: {unknown[0]!r} is no column; there are {SCHEMA.names}")
        selected = Selected.of(request, table)
        wanted = selected.wanted(request)
        endpoints, records = [], 0
        for node, (start, end) in enumerate(table.nodes):
            mine = [row for row in wanted if start <= row < end]
            records += len(mine)
            if mine or request["kind"] == "take":
                ticket = {**request, "node": node, "incarnation": incarnation}
                endpoints.append(_endpoint(json.dumps(ticket).encode(), f"grpc://127.0.0.1:{peer.data_port}", node))
        metadata: dict[str, Any] = {
            "v": 1,
            "dataset": {
                "table_uuid": table.table_uuid,
                "snapshot": table.snapshot,
                "filter": table.filter,
                "fingerprint": table.fingerprint,
            },
            "rows": table.rows,
            "nodes": table.nodes,
            **selected.metadata(request, table),
        }
        metadata["dataset"]["fingerprint"] += "".join(str(request.get(name, "")) for name in ("filter", "split"))
        schema = _projected(request).schema
        return fl.FlightInfo(
            schema,
            descriptor,
            endpoints,
            records,
            records * 64,
            ordered=True,
            app_metadata=json.dumps(metadata).encode(),
        )

    def do_action(self, context: fl.ServerCallContext, action: fl.Action) -> list[fl.Result]:
        """The head's status: Loading while head_unavailable is positive."""
        del context, action
        peer = self._peer
        with peer.lock:
            left = peer.faults.head_unavailable
            peer.faults.head_unavailable = max(0, left - 1)
            said: dict[str, Any] = {"state": "Loading" if left else "Ready", "rows": peer.table.rows // (left + 1)}
        if peer.faults.failed:
            said.update(state="Failed", reason=peer.faults.failed)
        said["splits"] = {"done": 28 // (left + 1), "total": 28}
        return [fl.Result(pa.py_buffer(json.dumps(said).encode()))]

    def do_get(self, context: fl.ServerCallContext, ticket: fl.Ticket) -> fl.GeneratorStream:
        """DoGet of a data node."""
        del context
        request = self._checked(ticket.ticket)
        table = self._peer.table
        start, end = table.nodes[request["node"]]
        rows = [table.first + row for row in Selected.of(request, table).wanted(request) if start <= row < end]
        return fl.GeneratorStream(_projected(request).schema, self._messages(request, rows))

    def do_exchange(
        self, context: fl.ServerCallContext, descriptor: fl.FlightDescriptor, reader: Any, writer: Any
    ) -> None:
        """DoExchange of a data node."""
        del context
        request = self._checked(descriptor.command)
        writer.begin(_projected(request).schema)
        table = self._peer.table
        filtered = Selected.of(request, table).filtered
        for chunk in reader:
            rows = [filtered[number] for number in chunk.data.column(0).to_pylist()]
            start, end = table.nodes[request["node"]]
            assert all(start <= row < end for row in rows)
            writer.write_batch(_projected(request, [table.first + row for row in rows]))

    def _checked(self, ticket: bytes) -> dict[str, Any]:
        request = json.loads(ticket)
        if request["incarnation"] != self._peer.incarnation:
            raise fl.FlightUnavailableError(f"data node {request['node']} restarted: ask the head again")
        return request

    def _messages(self, request: dict[str, Any], rows: list[int]) -> Iterator[Any]:
        peer = self._peer
        faults, size, breaks = peer.faults, peer.table.message_rows, peer.next_break()
        rows = rows[: len(rows) - faults.short_by]
        for first in range(0, len(rows), size):
            begun, part = time.perf_counter(), rows[first : first + size]
            if peer.gone:
                raise fl.FlightUnavailableError("the connection broke")
            if breaks is not None and first + len(part) > breaks:
                part = part[: breaks - first]
                if part:
                    yield _projected(request, part)
                raise fl.FlightUnavailableError("the connection broke")
            pause(faults.server_seconds)
            batch = _projected(request, part)
            busy = round((time.perf_counter() - begun) * 1e6)
            app_metadata = json.dumps({"busy_us": busy}).encode()
            yield batch if faults.silent else (batch, pa.py_buffer(app_metadata))


def _endpoint(ticket: bytes, location: str, node: int) -> fl.FlightEndpoint:
    return fl.FlightEndpoint(ticket, [location], None, json.dumps({"node": node}).encode())


def _projected(request: dict[str, Any], rows: list[int] | None = None) -> pa.RecordBatch:
    batch = rows_of(rows or [])
    return batch.select(request["columns"]) if "columns" in request else batch


@dataclass(frozen=True)
class Selected:
    """The rows that a request selects. filtered: those that its filter leaves; rows: of these, those of its split."""

    filtered: Sequence[int]
    rows: Sequence[int]

    @classmethod
    def of(cls, request: dict[str, Any], table: Table) -> Self:
        """Applies the filter and the split of a request. The filter is one of Python's over `id`."""
        filtered = list(range(table.rows))
        if "filter" in request:
            condition = compile(request["filter"].replace(" = ", " == ").lower(), "filter", "eval")
            filtered = [row for row in filtered if eval(condition, {"id": table.first + row})]
        if "split" not in request:
            return cls(filtered, filtered)
        split, count = request["split"], len(filtered)
        part = range(split["from"] * count // split["of"], split["to"] * count // split["of"])
        if not split["shuffle"]:
            return cls(filtered, [filtered[i] for i in part])
        return cls(filtered, [filtered[permuted(count, split["seed"], 0, i)] for i in part])

    def metadata(self, request: dict[str, Any], table: Table) -> dict[str, Any]:
        """The fields that the head adds for a selection."""
        if "filter" not in request and "split" not in request:
            return {}
        return {
            "rows": len(self.rows),
            "filtered_rows": len(self.filtered),
            "nodes": [[bisect.bisect_left(self.filtered, edge) for edge in node] for node in table.nodes],
            "selection": {"filter": request.get("filter", ""), **{k: request[k] for k in ("split",) if k in request}},
        }

    def wanted(self, request: dict[str, Any]) -> list[int]:
        """The rows of the table that the request asks for, in order; none for a take."""
        return [self.rows[row] for row in _wanted(request, len(self.rows))]


def _wanted(request: dict[str, Any], rows: int) -> tuple[int, ...]:
    """The rows of the selection that the request asks for."""
    without = ("v", "kind", "columns", "node", "incarnation", "filter", "split")
    options = {k: v for k, v in request.items() if k not in without}
    if request["kind"] == "epoch":
        return _share_rows(Oracle(rows=rows, **options))
    if request["kind"] == "mix":
        parts = tuple((part["rows"], tuple(part["weights"])) for part in options.pop("parts"))
        part, phases = options.pop("part"), tuple(options.pop("phases"))
        assert parts[part][0] == rows
        return _part_rows(Mixture(parts=parts, phases=phases, **options), part)
    return ()


@functools.lru_cache(512)
def _share_rows(oracle: Oracle) -> tuple[int, ...]:
    return tuple(oracle.share_rows())


@functools.lru_cache(512)
def _part_rows(oracle: Mixture, part: int) -> tuple[int, ...]:
    return tuple(oracle.part_rows(part))
