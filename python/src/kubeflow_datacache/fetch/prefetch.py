# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Prefetcher: a thread that merges and transforms batches ahead of the consumer."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future

from kubeflow_datacache.fetch.merge import Merge
from kubeflow_datacache.fetch.queue import ByteQueue, QueueEntry
from kubeflow_datacache.monitoring.stage_timer import StageTimer
from kubeflow_datacache.order.epoch import Epoch, Share
from kubeflow_datacache.rows.batch import Batch, held_bytes
from kubeflow_datacache.rows.block import StepBlock
from kubeflow_datacache.transform import Transform

_JOIN_SECONDS = 1.5  # close() waits this long; a gRPC call to a head that does not answer goes on in the thread


class Prefetcher:
    """Produces the batches of one share of an epoch, from a step on. Iterate once, in one thread. Close it, also after
    errors.

    make: makes the batch of a step, by its index in a block; None for a Batch.
    """

    def __init__(
        self,
        order: Epoch,
        share: Share,
        merge: Merge,
        *,
        step: int,
        transform: Transform | None,
        ready_bytes: int,
        timer: StageTimer,
        make: Callable[[StepBlock, int, int], Batch] | None = None,
    ) -> None:
        self._merge = merge
        self._make = make or functools.partial(Batch, (order, share))
        self._transform, self._timer = transform, timer
        self._queue: ByteQueue[StepBlock | Future[Batch]] = ByteQueue(ready_bytes)
        self._limit = ready_bytes
        self._thread = threading.Thread(target=self._produce, args=(step,), name="datacache-merge", daemon=True)
        self._thread.start()

    def batches(self) -> Iterator[Batch]:
        """Yields the batches in order. Raises an error of fetching or of the transform after the batches before it."""
        while (item := self._next()) is not None:
            if isinstance(item, StepBlock):
                for index, step in enumerate(item.steps):
                    yield self._make(item, index, step)
            else:
                yield self._result(item)

    def close(self) -> None:
        """Stops the thread and the streams."""
        self._merge.stop()
        self._queue.close()
        self._thread.join(_JOIN_SECONDS)

    def ready_depth(self) -> tuple[int, int]:
        """The rows and bytes that are merged or transformed and not returned yet."""
        return self._queue.depth()

    def raw_depth(self) -> tuple[int, int]:
        """The rows and bytes that were received and not merged yet."""
        feed = self._merge.feed
        return feed.depth() if feed is not None else (0, 0)

    @property
    def reconnects(self) -> int:
        """The number of times that a stream was reopened."""
        feed = self._merge.feed
        return self._merge.reconnects + (feed.reconnects if feed is not None else 0)

    @property
    def shared(self) -> int:
        """The number of steps that came from the reader of the host."""
        return self._merge.shared

    def _next(self) -> StepBlock | Future[Batch] | None:
        if not self._queue.would_block:
            return self._queue.get()
        self._timer.consumer_waits()
        try:
            return self._queue.get()
        finally:
            self._timer.consumer_resumes()

    def _result(self, future: Future[Batch]) -> Batch:
        if future.done():
            return future.result()
        self._timer.consumer_waits("transform")
        try:
            return future.result()
        finally:
            self._timer.consumer_resumes()

    def _produce(self, step: int) -> None:
        try:
            for block in self._merge.blocks(step):
                if not self._put(block):
                    return
            self._queue.close()
        except BaseException as error:
            self._queue.close(error)

    def _put(self, block: StepBlock) -> bool:
        if self._transform is None:
            return self._queue.put(block, QueueEntry(block.rows.num_rows, block.nbytes))
        for index, step in enumerate(block.steps):
            # The estimated size: the rows, and the transform's result, estimated from earlier results. Until there is
            # one, only one batch is in the queue.
            growth = self._transform.growth
            size = int(block.step_bytes * (1 + growth)) if growth is not None else self._limit
            if not self._queue.wait_for_room(size):
                return False
            self._timer.set_producer("transform")
            entry = QueueEntry(block.size, size)
            future = self._transform.start(self._make(block, index, step))
            if not self._queue.append(future, entry):
                return False
            future.add_done_callback(functools.partial(self._resize, entry))
        return True

    def _resize(self, entry: QueueEntry, future: Future[Batch]) -> None:
        self._queue.resize(entry, 0 if future.exception() is not None else held_bytes(future.result()))
