# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""An epoch's share as runs of whole steps: the data nodes' streams merged by walking the order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from kubeflow_datacache.clock import Clock
from kubeflow_datacache.feed import Feed, MovedError
from kubeflow_datacache.gather import Gather, concatenate
from kubeflow_datacache.order import Epoch, Share
from kubeflow_datacache.plan import Block, Plan
from kubeflow_datacache.slab import Slab

_GATHER_BYTES: Final = 1 << 20  # of rows that are gathered at once: about what a core's cache holds
_LEAST_ROWS: Final = 4096  # unless rows are so small that the work per block would show


class Merge:
    """Iterates over the slabs of a share from a step on; one thread at a time.

    open_feed(step, stop) makes the feed from a step on, unless the event is set; it is called again where data nodes
    have changed. slab_bytes: how large a slab may be, unless a single step is larger.
    """

    def __init__(
        self,
        epoch: Epoch,
        share: Share,
        open_feed: Callable[[int, threading.Event], Feed],
        *,
        slab_bytes: int,
        clock: Clock,
    ) -> None:
        self._epoch, self._share = epoch, share
        self._open_feed, self._slab_bytes, self._clock = open_feed, slab_bytes, clock
        self._stopped = False
        self._stop = threading.Event()  # of the feed
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
            self._stop = threading.Event()
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
        most = int(min(max(_LEAST_ROWS, _GATHER_BYTES / row_bytes), self._slab_bytes / row_bytes))
        rows = 1  # the first block is one step, so that it is there soon
        while not self._stopped:
            self._clock.produce("decode")
            block = plan.block(step, rows)
            if block is None:
                return
            rows = min(most, max(1, block.rows) * 4)
            parts = [part for node, count in block.counts.items() for part in feed.take(node, count)]
            step = block.steps[-1] + 1
            feed.mark(step, block.counts)
            yield from self._slabs(block, parts, feed.answer.schema)

    def _slabs(self, block: Block, parts: list[pa.RecordBatch], schema: pa.Schema) -> Iterator[Slab]:
        if block.places is not None:
            yield Slab(block.steps, block.size, Gather(parts, np.concatenate(block.places)).batch())
            return
        steps = block.steps
        if not block.size:
            yield Slab(steps, 0, concatenate([], schema))
            return
        for count, rows in _cut(parts, block.size, schema):
            yield Slab(steps[:count], block.size, rows)
            steps = steps[count:]


def _cut(parts: list[pa.RecordBatch], size: int, schema: pa.Schema) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The parts as runs of whole steps of size rows; only a step that lies across parts is copied."""
    torn: list[pa.RecordBatch] = []
    for part in parts:
        whole = part
        if torn:
            lacks = size - sum(t.num_rows for t in torn)
            torn.append(part.slice(0, lacks))
            if part.num_rows < lacks:
                continue
            yield 1, concatenate(torn, schema)
            torn, whole = [], part.slice(lacks)
        steps = whole.num_rows // size
        if steps:
            yield steps, whole.slice(0, steps * size)
        if whole.num_rows % size:
            torn = [whole.slice(steps * size)]
