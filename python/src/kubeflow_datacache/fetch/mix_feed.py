# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""MixFeed: the feeds of all parts of a mixture, presented as one feed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from kubeflow_datacache.fetch.feed import Feed
from kubeflow_datacache.flight_info import FlightInfo
from kubeflow_datacache.order.mix import Mix
from kubeflow_datacache.order.split import JoinedPlacement


class MixFeed:
    """One Feed per part. Data nodes, and rows, are numbered through all parts: those of part 0 come first.

    open_part(part, first_key) opens the feed of a part. schemas: of the batches of each part.
    """

    def __init__(self, open_part: Callable[[int, int], Feed], order: Mix, schemas: Sequence[pa.Schema]) -> None:
        self._order, self._schemas = order, schemas
        self._feeds: list[Feed] = []
        self._places: list[tuple[int, int]] = []  # of each node: its part, and its number there
        try:
            for part in range(len(schemas)):
                feed = open_part(part, len(self._places))
                self._feeds.append(feed)
                self._places += [(part, node) for node in range(len(feed.info.placement.bounds))]
        except BaseException:
            self.close()
            raise
        self.info = _joined([feed.info for feed in self._feeds], order.starts.tolist(), schemas[0])

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
            yield pa.RecordBatch.from_arrays(batch.columns, schema=self._schemas[part])

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
        self.stop()
        for feed in self._feeds:
            feed.close()


def _joined(infos: list[FlightInfo], starts: Sequence[int], schema: pa.Schema) -> FlightInfo:
    return replace(
        infos[0],
        schema=schema,
        placement=JoinedPlacement([info.placement for info in infos], starts),
        endpoints=(),
        records=sum(info.records for info in infos),
        nbytes=sum(info.nbytes for info in infos),
    )
