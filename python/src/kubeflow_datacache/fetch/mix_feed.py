# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""MixFeed: the feeds of all parts of a mixture, presented as one feed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Self

import pyarrow as pa

from kubeflow_datacache.fetch.feed import Feed
from kubeflow_datacache.fetch.take_feed import TakeFeed
from kubeflow_datacache.flight_info import FlightInfo
from kubeflow_datacache.order.epoch import RowIndices
from kubeflow_datacache.order.mix import Mix
from kubeflow_datacache.order.split import JoinedPlacement
from kubeflow_datacache.rows.widen import widened


class MixFeed:
    """One Feed per part. Data nodes, and rows, are numbered through all parts: those of part 0 come first.

    Make it with open(). schemas: of the batches of each part.
    """

    def __init__(self, feeds: Sequence[Feed | TakeFeed], order: Mix, schemas: Sequence[pa.Schema]) -> None:
        self._feeds, self._order, self._schemas = feeds, order, schemas
        # for each node of the whole: its part, and its number within the part
        self._places = [(part, node) for part, feed in enumerate(feeds) for node in range(_nodes(feed))]
        joined = JoinedPlacement([feed.info.placement for feed in feeds], order.starts.tolist())
        self.info = _joined([feed.info for feed in feeds], joined, schemas[0])
        self._firsts = joined.firsts

    @classmethod
    def open(cls, open_part: Callable[[int, int], Feed | TakeFeed], order: Mix, schemas: Sequence[pa.Schema]) -> Self:
        """Opens the feeds of all parts; open_part(part, first_key) opens that of one."""
        feeds: list[Feed | TakeFeed] = []
        try:
            for part in range(len(schemas)):
                feeds.append(open_part(part, sum(map(_nodes, feeds))))
            return cls(feeds, order, schemas)
        except BaseException:
            _close(feeds)
            raise

    @property
    def numbered(self) -> bool:
        """Whether rows come only after want()."""
        return self._feeds[0].numbered

    @property
    def wants_more(self) -> bool:
        """Whether another run should be wanted now."""
        return all(feed.wants_more for feed in self._feeds)

    def want(self, rows: int, numbers: Mapping[int, RowIndices]) -> None:
        """Requests the rows of a run: the numbers of its rows by data node."""
        del rows
        own: list[dict[int, RowIndices]] = [{} for _ in self._feeds]
        for node, wanted in numbers.items():
            part, local = self._places[node]
            own[part][local] = wanted - self._firsts[part]
        for feed, wanted in zip(self._feeds, own, strict=True):
            feed.want(sum(map(len, wanted.values())), wanted)

    @property
    def apart(self) -> bool:
        """Whether steps may have different columns."""
        return any(schema != self._schemas[0] for schema in self._schemas)

    def schema_of(self, step: int) -> pa.Schema:
        """The schema of the rows of a step."""
        part = int(self._order.part_of(range(step, step + 1))[0]) if self.apart else 0
        return self._schemas[part]

    def take(self, node: int, count: int) -> Iterator[pa.RecordBatch]:
        """The next `count` rows of a data node, as they arrive."""
        part, own = self._places[node]
        for batch in self._feeds[part].take(own, count):
            wide = widened(batch, self._schemas[part])  # parts may differ in what is short
            yield pa.RecordBatch.from_arrays(wide.columns, schema=self._schemas[part])

    def mark(self, step: int, counts: Mapping[int, int]) -> None:
        """Records that all steps before `step` are complete. counts: rows taken per node since the last call."""
        own: list[dict[int, int]] = [{} for _ in self._feeds]
        for node, count in counts.items():
            part, local = self._places[node]
            own[part][local] = count
        for feed, taken in zip(self._feeds, own, strict=True):
            feed.mark(step, taken)

    def depth(self) -> tuple[int, int]:
        """The rows and bytes that were read ahead."""
        depths = [feed.depth() for feed in self._feeds]
        return sum(rows for rows, _ in depths), sum(nbytes for _, nbytes in depths)

    @property
    def reconnects(self) -> int:
        """The number of times that streams were reopened."""
        return sum(feed.reconnects for feed in self._feeds)

    def stop(self) -> None:
        """Makes a blocked take raise an exception, and the threads end. Safe from any thread."""
        for feed in self._feeds:
            feed.stop()

    def close(self) -> None:
        """Closes the streams of all parts."""
        _close(self._feeds)


def _nodes(feed: Feed | TakeFeed) -> int:
    return len(feed.info.placement.bounds)


def _close(feeds: Sequence[Feed | TakeFeed]) -> None:
    for feed in feeds:  # all, before the first one is waited for
        feed.stop()
    for feed in feeds:
        feed.close()


def _joined(infos: list[FlightInfo], placement: JoinedPlacement, schema: pa.Schema) -> FlightInfo:
    return replace(
        infos[0],
        schema=schema,
        placement=placement,
        endpoints=(),
        records=sum(info.records for info in infos),
        nbytes=sum(info.nbytes for info in infos),
    )
