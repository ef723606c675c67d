# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Feed: one stream per data node for one reader's share of an epoch, and how to resume a broken one."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import pyarrow as pa

from kubeflow_datacache.client import StreamClient
from kubeflow_datacache.dataset import Dataset
from kubeflow_datacache.errors import DataCacheError, DatasetChangedError
from kubeflow_datacache.fetch.node_stream import NodeStream, Opening
from kubeflow_datacache.fetch.retry import Attempts
from kubeflow_datacache.flight_info import Endpoint, FlightInfo
from kubeflow_datacache.monitoring.stage_timer import StageTimer
from kubeflow_datacache.order.epoch import RowIndices
from kubeflow_datacache.stop import Stop

# Message sizes in bytes. By default servers send about 1 MiB per message, and never more than about 4 MiB.
_SHORTEST: Final = 1 << 16
_USUAL: Final = 1 << 20
_LONGEST: Final = 4 << 20
_IN_WORK: Final = 256 << 20  # limit of all readers' messages together, at one message per reader


class MovedError(DataCacheError):
    """The rows have moved to other data nodes. The feed cannot continue; create a new one."""


@dataclass(frozen=True)
class ResumePoint:
    """All rows before `step` were taken; taken[node] counts the rows taken from each data node since the feed was
    created."""

    step: int
    taken: Mapping[int, int]


def batch_bytes(prefetch_bytes: int, *, streams: int, readers: int) -> int:
    """The message size to request from data nodes. Long messages cost less, as each one passes through three Python
    threads.

    Each stream's read-ahead limit must fit two messages. A data node prepares two messages per reader (a rank, or one
    of its workers), so with many readers messages are shorter, to limit the node's memory.
    """
    return max(_SHORTEST, min(_LONGEST, prefetch_bytes // (2 * max(1, streams)), max(_USUAL, _IN_WORK // readers)))


class Feed:
    """Reads one reader's share of an epoch, starting at a step. The consumer takes rows per data node. Must be closed.

    Make it with open(). request is the CMD descriptor of an epoch, or of a part of a mixture, without start_step; info
    is the head's answer to it. first_key: the number of data node 0 in the timer. Setting `stop` ends the feed. Only
    one thread may call take and mark; each stream has its own thread.
    """

    def __init__(
        self,
        cache: StreamClient,
        request: Mapping[str, Any],
        dataset: Dataset,
        info: FlightInfo,
        *,
        start_step: int,
        prefetch_bytes: int,
        stop: Stop,
        timer: StageTimer,
        first_key: int,
    ) -> None:
        self._first_key = first_key
        self._cache, self._request, self._dataset = cache, request, dataset
        self._prefetch_bytes, self._timer, self._stop = prefetch_bytes, timer, stop
        self._streams: Mapping[int, NodeStream] = {}  # never changed, but replaced: any thread may iterate over it
        self._resume_point = ResumePoint(start_step, {})
        self.info = info
        self._lock = threading.Lock()
        self._waiting = {endpoint.node: endpoint for endpoint in self.info.endpoints}
        scattered = request["shuffle"] or request["kind"] == "mix" or self.info.placement.scattered
        at_once = len(self._waiting) if scattered else 1
        self._at_once = at_once
        # while streams are being opened: how many will share prefetch_bytes; then 0
        self._to_open = at_once
        self._ahead_bytes = prefetch_bytes // max(1, at_once)
        self._batch_bytes = batch_bytes(prefetch_bytes, streams=at_once, readers=request["world"] * request["workers"])

    @classmethod
    def open(
        cls,
        cache: StreamClient,
        request: Mapping[str, Any],
        dataset: Dataset,
        *,
        start_step: int,
        prefetch_bytes: int,
        stop: Stop,
        timer: StageTimer,
        first_key: int = 0,
    ) -> Self:
        """Asks the head where the rows are, and opens the streams that are read first."""
        asked = narrowed(cache, request)
        feed = cls(
            cache,
            asked,
            dataset,
            describe(cache, {**asked, "start_step": start_step}, dataset, stop),
            start_step=start_step,
            prefetch_bytes=prefetch_bytes,
            stop=stop,
            timer=timer,
            first_key=first_key,
        )
        for node in list(feed._waiting)[: feed._at_once]:
            feed._open(node)
        feed._to_open = 0
        return feed

    @property
    def apart(self) -> bool:
        """Whether steps may have different columns."""
        return False

    @property
    def numbered(self) -> bool:
        """Whether rows come only after want()."""
        return False

    @property
    def wants_more(self) -> bool:
        """Whether another run should be wanted now."""
        return False

    def want(self, rows: int, numbers: Mapping[int, RowIndices]) -> None:
        """Does nothing: streams are read ahead by themselves."""

    def schema_of(self, step: int) -> pa.Schema:
        """The schema of the rows of a step."""
        del step
        return self.info.schema

    def take(self, node: int, count: int) -> Iterator[pa.RecordBatch]:
        """The next `count` rows of a data node, as they arrive. After MovedError, create a new feed from the last
        marked step."""
        self._open(node)
        if node not in self._streams:
            raise DataCacheError(
                f"the head names no stream of data node {node}, which holds {count} rows of the next steps: a fault of"
                " the server, no row was passed on in their place"
            )
        return self._streams[node].take(count)

    def mark(self, step: int, counts: Mapping[int, int]) -> None:
        """Records that all steps before `step` are complete. counts: rows taken per node since the last call."""
        taken = dict(self._resume_point.taken)
        for node, count in counts.items():
            taken[node] = taken.get(node, 0) + count
        self._resume_point = ResumePoint(step, taken)

    def depth(self) -> tuple[int, int]:
        """The rows and bytes that were read ahead."""
        depths = [stream.depth() for stream in self._streams.values()]
        return sum(rows for rows, _ in depths), sum(nbytes for _, nbytes in depths)

    @property
    def reconnects(self) -> int:
        """The number of times that streams were reopened."""
        return sum(s.reconnects for s in self._streams.values())

    def stop(self) -> None:
        """Makes a blocked take raise an exception, and the threads end. Safe from any thread."""
        self._stop.set()
        with self._lock:
            streams = self._streams
        for stream in streams.values():
            stream.close()

    def close(self) -> None:
        """Closes the streams and waits up to 5 s for each thread."""
        self.stop()
        for stream in self._streams.values():
            stream.join(5.0)

    def _open(self, node: int) -> None:
        """Opens the stream of a data node unless it is open already."""
        with self._lock:
            if node not in self._waiting or self._stop.is_set():
                return
            endpoint = self._waiting.pop(node)
            opened = NodeStream(
                node,
                self._opening(endpoint, 0),
                reopen=self._reopen,
                quota=self._quota,
                ended=self._open_next,
                attempts=Attempts(
                    f"read from data node {node} at {endpoint.location}", self._cache.retry_seconds, self._stop
                ),
                stop=self._stop,
                timer=self._timer,
                timer_key=self._first_key + node,
            )
            self._streams = {**self._streams, node: opened}

    def _opening(self, endpoint: Endpoint, skip: int) -> Opening:
        return Opening(
            functools.partial(
                self._cache.stream, endpoint.location, endpoint.ticket, self._batch_bytes, self._ahead_bytes
            ),
            skip,
        )

    def _open_next(self) -> None:
        """Opens the next node's stream after one has ended: without shuffling, nodes are read one after the other."""
        with self._lock:
            following = next(iter(self._waiting), None)
        if following is not None:
            self._open(following)

    def _quota(self) -> float:
        """The read-ahead limit of each stream in bytes. An ended stream counts until its rows are taken."""
        holding = sum(not stream.drained for stream in self._streams.values())
        return self._prefetch_bytes / max(1, holding, self._to_open)

    def _reopen(self, node: int, received: int) -> Opening | None:
        point = self._resume_point
        info = describe(self._cache, {**self._request, "start_step": point.step}, self._dataset, self._stop)
        now, before = info.placement.bounds, self.info.placement.bounds
        if now != before:
            raise MovedError(f"the rows lie on other data nodes than before: {now}, were {before}")
        skip = received - point.taken.get(node, 0)
        for endpoint in info.endpoints:
            if endpoint.node == node:
                return self._opening(endpoint, skip)
        if skip:
            raise DataCacheError(
                f"the head names no stream of data node {node} any more, {skip} rows of which are still to be used:"
                " a fault of the server, no row was passed on in their place"
            )
        return None


def narrowed(cache: StreamClient, request: Mapping[str, Any]) -> Mapping[str, Any]:
    """The request, for the shortest types that the table's integers fit in where the cache offers that."""
    return {**request, "narrow": True} if cache.described.narrow else request


def describe(cache: StreamClient, request: Mapping[str, Any], was: Dataset, stop: Stop) -> FlightInfo:
    """The head's answer to a request. Raises DatasetChangedError if it is about another dataset."""
    info = cache.get_flight_info(request, stop)
    now = info.dataset
    if now.fingerprint != was.fingerprint or now.rows != was.rows:
        raise DatasetChangedError(
            f"the cache at {cache.endpoint} now serves another dataset: fingerprint {now.fingerprint}"
            f" (snapshot {now.snapshot}, {now.rows} rows), this loader began with {was.fingerprint} (snapshot"
            f" {was.snapshot}, {was.rows} rows). Positions of one mean nothing in the other: make a new loader, or"
            " start the cache with the snapshot pinned"
        )
    return info
