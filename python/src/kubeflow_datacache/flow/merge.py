# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""An epoch's share as runs of whole steps: the data nodes' streams merged by walking the order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import pyarrow as pa

from kubeflow_datacache.flow.feed import Feed, MovedError
from kubeflow_datacache.order.epoch import Epoch, Share
from kubeflow_datacache.order.plan import InterleavedRun, Plan, Run
from kubeflow_datacache.rows.arrays import Policy
from kubeflow_datacache.rows.gather import Gather, concatenate, detach_small
from kubeflow_datacache.rows.slab import DEFAULT, Slab
from kubeflow_datacache.stop import Stop
from kubeflow_datacache.watch.clock import Clock

# Bounds of one merge: smaller ones cost more in handing over between threads, larger ones fall out of the L2 cache.
_BLOCK_BYTES: Final = 16 << 20
_BLOCK_ROWS: Final = 1 << 17


class Merge:
    """Iterates over the slabs of a share from a step on; one thread at a time.

    open_feed(step, stop) makes the feed from a step on, unless the event is set; it is called again where data nodes
    have changed. slab_bytes: how large a merged slab may be, unless a single step is larger; one that
    needs no merging is as large as its message.
    """

    def __init__(
        self,
        epoch: Epoch,
        share: Share,
        open_feed: Callable[[int, Stop], Feed],
        *,
        slab_bytes: int,
        clock: Clock,
        policy: Policy = DEFAULT,
    ) -> None:
        self._epoch, self._share = epoch, share
        self._open_feed, self._slab_bytes, self._clock = open_feed, slab_bytes, clock
        self._policy = policy
        self._stopped = False
        self._stop = Stop()  # of the feed
        self.feed: Feed | None = None
        self.reconnects = 0

    def stop(self) -> None:
        """Makes the iteration end soon, from any thread."""
        self._stopped = True
        self._stop.set()
        if (feed := self.feed) is not None:
            feed.stop()

    def slabs(self, step: int) -> Iterator[Slab]:
        """The slabs from a step on, in order. No step is left out, given twice, or short of a row."""
        while not self._stopped:
            self._clock.produce("head")
            self._stop = Stop()
            if self._stopped:  # between the two lines above
                return
            feed = self.feed = self._open_feed(step, self._stop)
            try:
                for slab in self._walk(feed, step):
                    yield slab
                    step = slab.steps[-1] + 1
            except MovedError:
                self.reconnects += 1
            else:
                return
            finally:
                feed.close()
                self.reconnects, self.feed = self.reconnects + feed.reconnects, None

    def _walk(self, feed: Feed, step: int) -> Iterator[Slab]:
        plan = Plan(self._epoch, self._share, feed.answer.nodes)
        row_bytes = feed.answer.row_bytes
        most = min(_BLOCK_ROWS, int(min(_BLOCK_BYTES, self._slab_bytes) / row_bytes))
        rows = 1  # the first run is one step, to give the first batch early
        while not self._stopped:
            self._clock.produce("decode")
            ahead = plan.next(step, rows)
            if ahead is None:
                return
            if isinstance(ahead, Run):
                yield from self._pass(ahead, feed)
            else:
                rows = min(most, max(1, ahead.rows) * 4)
                yield self._interleave(ahead, feed)
            step = ahead.steps[-1] + 1

    def _pass(self, run: Run, feed: Feed) -> Iterator[Slab]:
        """The complete steps of each message; copies only small columns and steps that span messages."""
        schema, size, steps = feed.answer.schema, run.size, run.steps
        torn: list[pa.RecordBatch] = []  # the begin of a step
        for message in feed.take(run.node, len(steps) * size):
            torn.append(detach_small(message))
            while (rows := sum(part.num_rows for part in torn)) >= size:
                count = rows // size if len(torn) == 1 else 1
                last = torn.pop()
                here = count * size - (rows - last.num_rows)  # rows that the step takes from the last message
                slab = Slab(steps[:count], size, concatenate([*torn, last.slice(0, here)], schema), self._policy)
                torn, steps = [last.slice(here)] if here < last.num_rows else [], steps[count:]
                feed.mark(slab.steps[-1] + 1, {run.node: count * size})
                yield slab

    def _interleave(self, run: InterleavedRun, feed: Feed) -> Slab:
        """The rows of a run, brought into the order of its steps."""
        parts = [part for node, count in run.counts.items() for part in feed.take(node, count)]
        feed.mark(run.steps[-1] + 1, run.counts)
        if run.places is None:
            rows = concatenate(parts, feed.answer.schema)
            return Slab(run.steps, run.size, detach_small(rows) if len(parts) == 1 else rows, self._policy)
        return Slab(run.steps, run.size, Gather(parts, run.places).batch(), self._policy)
