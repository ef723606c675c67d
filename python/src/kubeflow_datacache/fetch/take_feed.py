# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""TakeFeed: reads a reader's share of an epoch by row numbers, over one DoExchange call per data node."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa

from kubeflow_datacache.client import StreamClient
from kubeflow_datacache.codes import CALL_ERRORS
from kubeflow_datacache.dataset import Dataset
from kubeflow_datacache.errors import DataCacheError
from kubeflow_datacache.fetch.exchange import RowFetcher
from kubeflow_datacache.fetch.feed import MovedError, describe, narrowed
from kubeflow_datacache.fetch.retry import Attempts
from kubeflow_datacache.flight_info import FlightInfo
from kubeflow_datacache.monitoring.stage_timer import StageTimer
from kubeflow_datacache.order.epoch import RowIndices
from kubeflow_datacache.stop import Stop

# In nanoseconds of CPU time, client and servers together, by make bench NAME=take. A stream costs _WALK for each
# row and data node, as each node walks the whole share to find its rows. A row that is requested by its number costs
# _ROW, and _BYTE for each of its bytes, more than a row of a stream from one node.
_WALK: Final = 9.0
_ROW: Final = 50.0
_BYTE: Final = 0.25
_MOST_RUNS: Final = 4  # requested runs that were not taken yet: enough for the servers to work while blocks are merged

_Numbers = dict[int, RowIndices]


def takes(nodes: int, row_bytes: float, clump: int = 1) -> bool:
    """Whether a shuffled epoch from `nodes` data nodes costs less by row numbers than as streams.

    clump: consecutive rows that are found at once. From 8 nodes on for rows of 72 bytes, from about 64 on for rows of
    2 KB.
    """
    return nodes * _WALK >= (_ROW + _BYTE * row_bytes) * clump


class TakeSource:
    """Where rows can be requested by number: the head's answer, kept for all epochs until it is of no use any more.

    Not safe for concurrent use.
    """

    def __init__(self, cache: StreamClient, columns: list[str] | None, dataset: Dataset, early: bool = True) -> None:
        self.cache, self._dataset = cache, dataset
        self._request: dict[str, Any] = {"kind": "take"} if columns is None else {"kind": "take", "columns": columns}
        if not early:  # only when all rows are loaded
            self._request["early"] = False
        self._info: FlightInfo | None = None

    def info(self, stop: Stop) -> FlightInfo:
        """The head's answer. Raises DatasetChangedError if it is about another dataset."""
        if self._info is None:
            self._info = describe(self.cache, narrowed(self.cache, self._request), self._dataset, stop)
        return self._info

    def forget(self) -> None:
        """Asks the head again when the answer is needed next."""
        self._info = None


class TakeFeed:
    """Requests rows by number from the data nodes, ahead of the consumer. Must be closed.

    The consumer calls want() with the rows of each run, while wants_more; and then take() for each node of the run, and
    mark(). Only one thread may call them. Another thread has one call open to each data node, and keeps at most one
    request in each: while the consumer takes a run, the data nodes gather the next one. prefetch_bytes: limit of the
    rows requested and not taken, by their estimated size. first_key: the number of data node 0 in the timer.
    """

    apart = False
    numbered = True

    def __init__(
        self, source: TakeSource, *, prefetch_bytes: int, stop: Stop, timer: StageTimer, first_key: int = 0
    ) -> None:
        self.info = source.info(stop)
        self.reconnects = 0
        self._source, self._limit, self._stop = source, prefetch_bytes, stop
        self._timer, self._first_key = timer, first_key
        self._fetchers: dict[int, RowFetcher] = {}
        self._changed = threading.Condition()
        self._wanted: deque[_Numbers] = deque()  # of each run, by node: not requested yet
        self._now: _Numbers = {}  # requested and not received
        self._following: _Numbers = {}  # requested from each data node after its rows of _now were received
        self._ready: dict[int, deque[pa.RecordBatch]] = {}
        self._rows = self._bytes = 0  # of the batches in _ready
        self._asked = self._runs = 0  # rows and runs that were wanted and not taken
        self._error: Exception | None = None
        cache = source.cache
        self._attempts = Attempts(f"take rows from the cache at {cache.endpoint}", cache.retry_seconds, stop)
        self._thread = threading.Thread(target=self._run, name="datacache-take", daemon=True)
        self._thread.start()

    def schema_of(self, step: int) -> pa.Schema:
        """The schema of the rows of a step."""
        del step
        return self.info.schema

    @property
    def wants_more(self) -> bool:
        """Whether another run should be wanted now."""
        return self._runs == 0 or (self._runs < _MOST_RUNS and self._asked * self.info.row_bytes < self._limit)

    def want(self, rows: int, numbers: Mapping[int, RowIndices]) -> None:
        """Requests the rows of a run: the numbers of its rows by data node."""
        with self._changed:
            self._runs, self._asked = self._runs + 1, self._asked + rows
            self._wanted.append(dict(numbers))
            self._changed.notify_all()

    def take(self, node: int, count: int) -> Iterator[pa.RecordBatch]:
        """The next `count` wanted rows of a data node."""
        self._asked -= count
        while count:
            batch = self._next(node, count)
            count -= batch.num_rows
            yield batch

    def mark(self, step: int, counts: Mapping[int, int]) -> None:
        """Records that a run was taken."""
        del step, counts
        self._runs -= 1

    def depth(self) -> tuple[int, int]:
        """The rows and bytes that were read ahead."""
        with self._changed:
            return self._rows, self._bytes

    def stop(self) -> None:
        """Makes a blocked take raise an exception, and the thread end. Safe from any thread."""
        self._stop.set()
        for fetcher in list(self._fetchers.values()):
            with contextlib.suppress(*CALL_ERRORS):
                fetcher.cancel()
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Closes the calls and waits up to 5 s for the thread."""
        self.stop()
        self._thread.join(5.0)

    def _next(self, node: int, most: int) -> pa.RecordBatch:
        with self._changed:
            ready = self._ready.setdefault(node, deque())
            if not ready:
                self._timer.set_producer(self._first_key + node)
                while not ready:
                    if self._stop.is_set():
                        raise DataCacheError("the loader was closed while it read")
                    if self._error is not None:
                        raise self._error
                    self._changed.wait()
                self._timer.set_producer("decode")
            batch = ready.popleft()
            if batch.num_rows > most:
                ready.appendleft(batch.slice(most))
                batch = batch.slice(0, most)
            self._rows -= batch.num_rows
            self._bytes -= int(batch.num_rows * self.info.row_bytes)
            return batch

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                try:
                    self._fetch()
                except CALL_ERRORS as error:
                    if not self._stop.is_set():
                        self._reconnect(error)
        except Exception as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()
        finally:
            self._drop()

    def _fetch(self) -> None:
        """Requests and receives until the feed is stopped. After an error it may be called again."""
        self._request(self._now)
        while not self._stop.is_set():
            if not self._now:  # of _following there are some after an error
                self._now, self._following = self._following or self._take_wanted(wait=True), {}
                self._request(self._now)
            following = self._following = self._following or self._take_wanted(wait=False)
            sent = set[int]()
            for node, rows in list(self._now.items()):
                self._receive(node, len(rows))
                del self._now[node]
                if node in following:
                    self._request({node: following[node]})
                    sent.add(node)
            self._request({node: rows for node, rows in following.items() if node not in sent})
            self._now, self._following = following, {}

    def _take_wanted(self, *, wait: bool) -> _Numbers:
        """The rows of all runs that are wanted and not requested yet, by data node."""
        with self._changed:
            while wait and not self._wanted and not self._stop.is_set():
                self._changed.wait()
            runs, self._wanted = list(self._wanted), deque()
        if len(runs) == 1:
            return runs[0]
        nodes = dict.fromkeys(node for run in runs for node in run)
        return {node: np.concatenate([run[node] for run in runs if node in run]) for node in nodes}

    def _request(self, numbers: _Numbers) -> None:
        """Requests rows, over calls that are opened for it where there are none."""
        for node in numbers:
            if node not in self._fetchers:
                endpoint = next((e for e in self.info.endpoints if e.node == node), None)
                if endpoint is None:
                    raise DataCacheError(
                        f"the head names no address of data node {node}, which holds rows of the epoch"
                    )
                exchange = self._source.cache.exchange(endpoint.location, endpoint.ticket)
                self._fetchers = {**self._fetchers, node: RowFetcher(exchange, self.info.row_bytes)}
                if self._stop.is_set():  # stop() may not have seen the call
                    exchange.cancel()
        for node, rows in numbers.items():
            self._fetchers[node].request(rows + self.info.placement.first)

    def _receive(self, node: int, count: int) -> None:
        fetcher = self._fetchers[node]
        parts = fetcher.receive(count)
        self._timer.message_received(self._first_key + node, fetcher.busy)
        self._attempts.succeeded()
        with self._changed:
            self._ready.setdefault(node, deque()).extend(parts)
            self._rows += count
            self._bytes += int(count * self.info.row_bytes)
            self._changed.notify_all()

    def _reconnect(self, error: Exception) -> None:
        """Waits, and asks the head where the rows are now. Raises MovedError if they are on other data nodes."""
        self._drop()
        keys = [self._first_key + node for node in range(len(self.info.placement.bounds))]
        for key in keys:
            self._timer.set_asking_head(key, True)
        try:
            self._attempts.failed(error)
            self.reconnects += 1
            self._source.forget()
            with self._attempts.not_counted():
                info = self._source.info(self._stop)
        finally:
            for key in keys:
                self._timer.set_asking_head(key, False)
        now, before = info.placement.bounds, self.info.placement.bounds
        if now != before:
            raise MovedError(f"the rows lie on other data nodes than before: {now}, were {before}")
        self.info = info

    def _drop(self) -> None:
        """Closes all calls."""
        fetchers, self._fetchers = self._fetchers, {}
        for fetcher in fetchers.values():
            with contextlib.suppress(*CALL_ERRORS):
                fetcher.close()
