# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The streams of one epoch's share, one a data node, and how to go on when one breaks."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from kubeflow_datacache.answer import Answer, Endpoint
from kubeflow_datacache.client import StreamClient
from kubeflow_datacache.dataset import Dataset
from kubeflow_datacache.errors import DataCacheError, DatasetChangedError
from kubeflow_datacache.flow.retry import Attempts
from kubeflow_datacache.flow.stream import Opening, Stream
from kubeflow_datacache.stop import Stop
from kubeflow_datacache.watch.clock import Clock

# Bytes of a message. Servers make them of about a MiB unless told otherwise, and none of more than about four.
_SHORTEST: Final = 1 << 16
_USUAL: Final = 1 << 20
_LONGEST: Final = 4 << 20
_IN_WORK: Final = 256 << 20  # of all readers' messages together, one for each


class MovedError(DataCacheError):
    """The rows have moved to other data nodes: this feed can't go on, make a new one."""


@dataclass(frozen=True)
class Mark:
    """Everything before this step was taken; taken[node] rows of each data node since the feed's begin."""

    step: int
    taken: Mapping[int, int]


def batch_bytes(prefetch_bytes: int, *, streams: int, readers: int) -> int:
    """The message size to ask data nodes for. Long messages cost less: each one passes through three Python threads.

    Two messages must fit into what each stream may read ahead. A data node works on two messages for each reader (a
    rank, or its worker), so many readers get shorter ones, to bound its memory.
    """
    return max(_SHORTEST, min(_LONGEST, prefetch_bytes // (2 * max(1, streams)), max(_USUAL, _IN_WORK // readers)))


class Feed:
    """Rows of one epoch's share from a step on, by data node. Close it.

    request is the epoch's CMD descriptor without start_step. stop, once set, ends it. One thread takes and marks; each
    stream has its own.
    """

    def __init__(
        self,
        cache: StreamClient,
        request: Mapping[str, Any],
        dataset: Dataset,
        *,
        start_step: int,
        prefetch_bytes: int,
        stop: Stop,
        clock: Clock,
    ) -> None:
        self._cache, self._request, self._dataset = cache, request, dataset
        self._prefetch_bytes, self._clock, self._stop = prefetch_bytes, clock, stop
        self._streams: dict[int, Stream] = {}
        self._mark = Mark(start_step, {})
        self.answer = self._ask(start_step)
        self._lock = threading.Lock()
        self._waiting = {endpoint.node: endpoint for endpoint in self.answer.endpoints}
        self._batch_bytes = batch_bytes(
            prefetch_bytes,
            streams=len(self._waiting) if request["shuffle"] else 1,
            readers=request["world"] * request["workers"],
        )
        for node in list(self._waiting)[: None if request["shuffle"] else 1]:
            self._open(node)

    def take(self, node: int, count: int) -> Iterator[pa.RecordBatch]:
        """The next count rows of a data node, as they come. MovedError: make a new feed from the last mark on."""
        self._open(node)
        if node not in self._streams:
            raise DataCacheError(
                f"the head names no stream of data node {node}, which holds {count} rows of the next steps: a fault of"
                " the server, no row was passed on in their place"
            )
        return self._streams[node].take(count)

    def mark(self, step: int, counts: Mapping[int, int]) -> None:
        """Records that all steps before `step` are complete; counts: rows taken of each node since the last mark."""
        taken = dict(self._mark.taken)
        for node, count in counts.items():
            taken[node] = taken.get(node, 0) + count
        self._mark = Mark(step, taken)

    def depth(self) -> tuple[int, int]:
        """Rows and bytes that were read ahead."""
        depths = [stream.depth() for stream in list(self._streams.values())]
        return sum(rows for rows, _ in depths), sum(nbytes for _, nbytes in depths)

    @property
    def reconnects(self) -> int:
        """How many times streams were opened again."""
        return sum(s.reconnects for s in self._streams.values())

    def stop(self) -> None:
        """Makes a take that waits raise, and the threads end. May be called from any thread."""
        self._stop.set()
        with self._lock:
            streams = list(self._streams.values())
        for stream in streams:
            stream.close()

    def close(self) -> None:
        """Ends the streams and waits a moment for their threads."""
        self.stop()
        for stream in self._streams.values():
            stream.join(5.0)

    def _open(self, node: int) -> None:
        """Opens the stream of a data node, if it is not open."""
        with self._lock:
            if node not in self._waiting or self._stop.is_set():
                return
            endpoint = self._waiting.pop(node)
            self._streams[node] = Stream(
                node,
                self._opening(endpoint, 0),
                reopen=self._reopen,
                quota=self._quota,
                ended=self._open_next,
                attempts=Attempts(
                    f"read from data node {node} at {endpoint.location}", self._cache.patience, self._stop
                ),
                stop=self._stop,
                clock=self._clock,
            )

    def _opening(self, endpoint: Endpoint, skip: int) -> Opening:
        return Opening(
            functools.partial(self._cache.stream, endpoint.location, endpoint.ticket, self._batch_bytes), skip
        )

    def _open_next(self) -> None:
        """Opens the next node's stream when one has ended: without shuffling, nodes are read one after the other."""
        with self._lock:
            following = next(iter(self._waiting), None)
        if following is not None:
            self._open(following)

    def _quota(self) -> float:
        """Bytes that each stream may hold; a stream that has ended counts until its rows are taken."""
        holding = sum(not stream.drained for stream in list(self._streams.values()))
        return self._prefetch_bytes / max(1, holding)

    def _ask(self, start_step: int) -> Answer:
        answer = self._cache.ask({**self._request, "start_step": start_step}, self._stop)
        was, now = self._dataset, answer.dataset
        if now.fingerprint != was.fingerprint or now.rows != was.rows:
            raise DatasetChangedError(
                f"the cache at {self._cache.endpoint} now serves another dataset: fingerprint {now.fingerprint}"
                f" (snapshot {now.snapshot}, {now.rows} rows), this loader began with {was.fingerprint} (snapshot"
                f" {was.snapshot}, {was.rows} rows). Positions of one mean nothing in the other: make a new loader, or"
                " start the cache with the snapshot pinned"
            )
        return answer

    def _reopen(self, node: int, received: int) -> Opening | None:
        mark = self._mark
        answer = self._ask(mark.step)
        if answer.nodes != self.answer.nodes:
            raise MovedError(f"the rows lie on other data nodes than before: {answer.nodes}, were {self.answer.nodes}")
        skip = received - mark.taken.get(node, 0)
        for endpoint in answer.endpoints:
            if endpoint.node == node:
                return self._opening(endpoint, skip)
        if skip:
            raise DataCacheError(
                f"the head names no stream of data node {node} any more, {skip} rows of which are still to be used:"
                " a fault of the server, no row was passed on in their place"
            )
        return None
