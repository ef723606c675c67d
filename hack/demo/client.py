# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A small client of the cache: ask the head where rows are, stream them from the data nodes, merge them in order."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as fl

from demo.order import Epoch, Rows

_BLOCK = 64  # steps that are merged at once: large enough to be fast, small enough to stay in cache


@dataclass(frozen=True)
class Step:
    """One rank's rows of one step, in the epoch's order."""

    number: int
    rows: pa.RecordBatch


class Cache:
    """The cache behind a head's address. Give it back with close()."""

    def __init__(self, endpoint: str) -> None:
        self._head = fl.connect(endpoint)
        self._nodes: dict[str, fl.FlightClient] = {}

    def close(self) -> None:
        """Closes the connections to head and data nodes."""
        for client in [self._head, *self._nodes.values()]:
            client.close()

    def rows(self) -> int:
        """How many rows the cached table has."""
        return self._head.get_flight_info(fl.FlightDescriptor.for_path("0", "1")).total_records

    def shard(self, index: int, total: int) -> Iterator[pa.RecordBatch]:
        """A contiguous share of the table, in row order: share number index of total."""
        info = self._head.get_flight_info(fl.FlightDescriptor.for_path(str(index), str(total)))
        for endpoint in info.endpoints:
            yield from _Stream(self._node(endpoint), endpoint.ticket).batches()

    def epoch(self, epoch: Epoch, rank: int, world: int, columns: list[str]) -> Iterator[Step]:
        """The rank's part of a shuffled epoch, step by step.

        Each data node streams its own rows of the rank's part in the epoch's order; which node has the next row
        follows from the order alone, so that merging the streams needs no index from the server.
        """
        info = self._head.get_flight_info(fl.FlightDescriptor.for_command(_command(epoch, rank, world, columns)))
        starts = np.array([start for start, _ in json.loads(info.app_metadata)["nodes"]])
        streams = {
            json.loads(endpoint.app_metadata)["node"]: _Stream(self._node(endpoint), endpoint.ticket)
            for endpoint in info.endpoints
        }
        sequence = epoch.sequence()
        for first in range(0, epoch.steps, _BLOCK):
            shares = [(s, *epoch.share(s, rank, world)) for s in range(first, min(first + _BLOCK, epoch.steps))]
            rows = np.concatenate([sequence[lo:hi] for _, lo, hi in shares])
            if not rows.size:
                continue
            merged = _merge(rows, starts, streams)
            done = 0
            for step, lo, hi in shares:
                yield Step(step, merged.slice(done, hi - lo))
                done += hi - lo

    def _node(self, endpoint: fl.FlightEndpoint) -> fl.FlightClient:
        uri = endpoint.locations[0].uri.decode()
        if uri not in self._nodes:
            self._nodes[uri] = fl.connect(uri)
        return self._nodes[uri]


def _command(epoch: Epoch, rank: int, world: int, columns: list[str]) -> bytes:
    request: dict[str, Any] = {
        "v": 1,
        "kind": "epoch",
        "seed": epoch.seed,
        "epoch": epoch.number,
        "shuffle": True,
        "clump": 1,
        "global_batch": epoch.global_batch,
        "tail": "keep",
        "rank": rank,
        "world": world,
        "worker": 0,
        "workers": 1,
        "start_step": 0,
        "columns": columns,
    }
    return json.dumps(request).encode()


def _merge(rows: Rows, starts: Rows, streams: dict[int, _Stream]) -> pa.RecordBatch:
    """The next len(rows) rows of all streams together, in the order of rows; node i holds rows from starts[i]."""
    owner = np.searchsorted(starts, rows, side="right") - 1
    parts: list[pa.RecordBatch] = []
    for node, stream in sorted(streams.items()):
        parts += stream.take(int((owner == node).sum()))
    by_node = pa.Table.from_batches(parts)
    place = np.empty(len(rows), np.int64)
    place[np.argsort(owner, kind="stable")] = np.arange(len(rows))
    return by_node.take(pa.array(place)).combine_chunks().to_batches()[0]


class _Stream:
    """One DoGet, read ahead by a thread of its own: the network works while the model computes."""

    def __init__(self, client: fl.FlightClient, ticket: fl.Ticket, ahead: int = 4) -> None:
        self._ready: queue.Queue[pa.RecordBatch | Exception | None] = queue.Queue(ahead)
        self._rest: pa.RecordBatch | None = None
        threading.Thread(target=self._read, args=(client, ticket), daemon=True).start()

    def _read(self, client: fl.FlightClient, ticket: fl.Ticket) -> None:
        try:
            for chunk in client.do_get(ticket):
                self._ready.put(chunk.data)
            self._ready.put(None)
        except Exception as error:
            self._ready.put(error)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """What is left of the stream."""
        while (batch := self._next()) is not None:
            yield batch

    def take(self, count: int) -> list[pa.RecordBatch]:
        """The next count rows. A stream that ends before is an error, never a shorter answer."""
        out: list[pa.RecordBatch] = []
        while count:
            batch = self._next()
            if batch is None:
                raise EOFError(f"the data node's stream ended {count} rows early")
            out.append(batch.slice(0, count))
            if batch.num_rows > count:
                self._rest = batch.slice(count)
            count -= out[-1].num_rows
        return out

    def _next(self) -> pa.RecordBatch | None:
        if self._rest is not None:
            batch, self._rest = self._rest, None
            return batch
        item = self._ready.get()
        if isinstance(item, Exception):
            raise item
        return item
