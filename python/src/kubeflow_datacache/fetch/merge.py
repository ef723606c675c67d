# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Merges the data nodes' streams into blocks of complete steps, in the order of the epoch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Protocol

import pyarrow as pa

from kubeflow_datacache.fetch.feed import MovedError
from kubeflow_datacache.flight_info import FlightInfo
from kubeflow_datacache.monitoring.stage_timer import StageTimer
from kubeflow_datacache.order.epoch import Epoch, RowIndices, Share
from kubeflow_datacache.order.plan import InterleavedRun, Plan, Run
from kubeflow_datacache.rows.arrays import DEFAULT, Policy
from kubeflow_datacache.rows.block import StepBlock
from kubeflow_datacache.rows.gather import Gather, concatenate, detach_small
from kubeflow_datacache.rows.widen import alike, widened
from kubeflow_datacache.stop import Stop

# Size limits of one merged block: smaller ones cost more per hand-over between threads, larger ones exceed the L2
# cache.
_BLOCK_BYTES: Final = 16 << 20
_BLOCK_ROWS: Final = 1 << 17


class RowFeed(Protocol):
    """The rows of a reader's share, by data node: a Feed, a TakeFeed, or the MixFeed of a mixture."""

    info: FlightInfo

    @property
    def numbered(self) -> bool:
        """Whether rows come only after want()."""
        ...

    @property
    def wants_more(self) -> bool:
        """Whether another run should be wanted now, ahead of those that are taken."""
        ...

    def want(self, rows: int, numbers: Mapping[int, RowIndices]) -> None:
        """Requests the rows of a run: the numbers of its rows by data node."""
        ...

    @property
    def apart(self) -> bool:
        """Whether steps may have different columns."""
        ...

    @property
    def reconnects(self) -> int:
        """The number of times that streams were reopened."""
        ...

    def schema_of(self, step: int) -> pa.Schema:
        """The schema of the rows of a step."""
        ...

    def take(self, node: int, count: int) -> Iterator[pa.RecordBatch]:
        """The next `count` rows of a data node, as they arrive."""
        ...

    def mark(self, step: int, counts: Mapping[int, int]) -> None:
        """Records that all steps before `step` are complete."""
        ...

    def depth(self) -> tuple[int, int]:
        """The rows and bytes that were read ahead."""
        ...

    def stop(self) -> None:
        """Makes a blocked take raise an exception."""
        ...

    def close(self) -> None:
        """Closes the streams."""
        ...


OpenFeed = Callable[[int, Stop], RowFeed]  # opens a feed from a step on


class Merge:
    """Merges a share of an epoch into blocks, from a given step on. For one thread at a time.

    open_feed(step, stop) opens a feed from a step on, unless the event is set; it is called again after rows have moved
    to other data nodes. block_bytes: the size limit of a merged block, unless a single step is larger. Blocks that need
    no merging are as large as the messages they come from. make_plan: makes the plan for a feed; None for that of the
    share.
    """

    def __init__(
        self,
        epoch: Epoch,
        share: Share,
        open_feed: OpenFeed,
        *,
        block_bytes: int,
        timer: StageTimer,
        policy: Policy = DEFAULT,
        make_plan: Callable[[RowFeed], Plan] | None = None,
    ) -> None:
        self._epoch, self._share, self._make_plan = epoch, share, make_plan or self._plan
        self._open_feed, self._block_bytes, self._timer = open_feed, block_bytes, timer
        self._policy = policy
        self.widen = widened  # what is done with integers that came in a shorter type than a schema's
        self._stopped = False
        self._stop = Stop()  # stops the current feed
        self.feed: RowFeed | None = None
        self.reconnects = self.shared = 0  # shared: steps that came from the reader of the host

    def stop(self) -> None:
        """Ends the iteration soon. Safe from any thread."""
        self._stopped = True
        self._stop.set()
        if (feed := self.feed) is not None:
            feed.stop()

    def blocks(self, step: int) -> Iterator[StepBlock]:
        """Yields the blocks from a step on, in order. Every step comes exactly once, with all its rows."""
        while not self._stopped:
            self._timer.set_producer("head")
            self._stop = Stop()
            if self._stopped:  # stop() was called between the two lines above
                return
            feed = self.feed = self._open_feed(step, self._stop)
            try:
                for block in self._walk(feed, step):
                    yield block
                    step = block.steps[-1] + 1
            except MovedError:
                self.reconnects += 1
            else:
                return
            finally:
                feed.close()
                self.reconnects, self.feed = self.reconnects + feed.reconnects, None

    def _walk(self, feed: RowFeed, step: int) -> Iterator[StepBlock]:
        runs = self._runs(self._make_plan(feed), step, feed.info.row_bytes)
        ahead: deque[Run | InterleavedRun] = deque()
        while not self._stopped:
            self._timer.set_producer("decode")
            while (not ahead or feed.wants_more) and (run := next(runs, None)) is not None:
                if isinstance(run, InterleavedRun) and feed.numbered:
                    feed.want(run.rows, run.numbers_by_node)
                ahead.append(run)
            if not ahead:
                return
            run = ahead.popleft()
            if isinstance(run, Run):
                yield from self._pass(run, feed)
            else:
                yield self._interleave(run, feed)

    def _plan(self, feed: RowFeed) -> Plan:
        return Plan(self._epoch, self._share, feed.info.placement, apart=feed.apart, numbered=feed.numbered)

    def _runs(self, plan: Plan, step: int, row_bytes: float) -> Iterator[Run | InterleavedRun]:
        """The runs from a step on."""
        most = min(_BLOCK_ROWS, int(min(_BLOCK_BYTES, self._block_bytes) / row_bytes))
        rows = 1  # the first run is a single step, so that the first batch comes early
        while (run := plan.next(step, rows)) is not None:
            yield run
            if isinstance(run, InterleavedRun):
                rows = min(most, max(1, run.rows) * 4)
            step = run.steps[-1] + 1

    def _pass(self, run: Run, feed: RowFeed) -> Iterator[StepBlock]:
        """Yields the complete steps of each message. Copies only small columns and steps that span messages."""
        schema, size, steps = feed.schema_of(run.steps[0]), run.size, run.steps
        torn: list[pa.RecordBatch] = []  # parts of an incomplete step
        for message in feed.take(run.node, len(steps) * size):
            torn.append(detach_small(message))
            while (rows := sum(part.num_rows for part in torn)) >= size:
                count = rows // size if len(torn) == 1 else 1
                last = torn.pop()
                here = count * size - (rows - last.num_rows)  # number of rows that the step takes from the last message
                rows_of_steps = self.widen(concatenate(alike([*torn, last.slice(0, here)], schema), schema), schema)
                block = StepBlock(steps[:count], size, rows_of_steps, self._policy)
                torn, steps = [last.slice(here)] if here < last.num_rows else [], steps[count:]
                feed.mark(block.steps[-1] + 1, {run.node: count * size})
                yield block

    def _interleave(self, run: InterleavedRun, feed: RowFeed) -> StepBlock:
        """Collects the rows of a run from all data nodes and puts them in the order of its steps."""
        parts = [part for node, count in run.counts.items() for part in feed.take(node, count)]
        feed.mark(run.steps[-1] + 1, run.counts)
        schema = feed.schema_of(run.steps[0])
        parts = alike(parts, schema)
        if run.destinations is None:
            rows = concatenate(parts, schema)
            rows = detach_small(rows) if len(parts) == 1 else rows
        else:
            rows = Gather(parts, run.destinations).batch()
        return StepBlock(run.steps, run.size, self.widen(rows, schema), self._policy)
