# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""One pass over (the rest of) an epoch: a thread merges and transforms ahead of the consumer."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from concurrent.futures import Future

from kubeflow_datacache.flow.merge import Merge
from kubeflow_datacache.flow.pipe import Pipe, Ticket
from kubeflow_datacache.order.epoch import Epoch, Share
from kubeflow_datacache.rows.batch import Batch
from kubeflow_datacache.rows.slab import Slab
from kubeflow_datacache.transform import Transform
from kubeflow_datacache.watch.clock import Clock

_JOIN_SECONDS = 1.5  # a call over gRPC to a head that hangs is left behind after so long


class Reading:
    """Batches of one share from a step on. Iterate once, from one thread; close it, also after an error."""

    def __init__(
        self,
        order: Epoch,
        share: Share,
        merge: Merge,
        *,
        step: int,
        transform: Transform | None,
        ready_bytes: int,
        clock: Clock,
    ) -> None:
        self._origin, self._merge = (order, share), merge
        self._transform, self._clock = transform, clock
        self._pipe: Pipe[Slab | Future[Batch]] = Pipe(ready_bytes)
        self._limit = ready_bytes
        self._thread = threading.Thread(target=self._produce, args=(step,), name="datacache-merge", daemon=True)
        self._thread.start()

    def batches(self) -> Iterator[Batch]:
        """The batches, in order; raises what reading or the transform raised, after the batches before it."""
        origin = self._origin
        while (item := self._next()) is not None:
            if isinstance(item, Slab):
                for index, step in enumerate(item.steps):
                    yield Batch(origin, item, index, step)
            else:
                yield self._result(item)

    def close(self) -> None:
        """Ends the thread and the streams."""
        self._merge.stop()
        self._pipe.end()
        self._thread.join(_JOIN_SECONDS)

    def ready(self) -> tuple[int, int]:
        """Rows and bytes that are merged or transformed, and not given out yet."""
        return self._pipe.depth()

    def raw(self) -> tuple[int, int]:
        """Rows and bytes as they came from the data nodes, not merged yet."""
        feed = self._merge.feed
        return feed.depth() if feed is not None else (0, 0)

    @property
    def reconnects(self) -> int:
        """How many times a stream was opened again."""
        feed = self._merge.feed
        return self._merge.reconnects + (feed.reconnects if feed is not None else 0)

    def _next(self) -> Slab | Future[Batch] | None:
        if not self._pipe.waiting:
            return self._pipe.get()
        self._clock.wait()
        try:
            return self._pipe.get()
        finally:
            self._clock.resume()

    def _result(self, future: Future[Batch]) -> Batch:
        if future.done():
            return future.result()
        self._clock.wait("transform")
        try:
            return future.result()
        finally:
            self._clock.resume()

    def _produce(self, step: int) -> None:
        try:
            for slab in self._merge.slabs(step):
                if not self._put(slab):
                    return
            self._pipe.end()
        except BaseException as error:
            self._pipe.end(error)

    def _put(self, slab: Slab) -> bool:
        if self._transform is None:
            return self._pipe.put(slab, Ticket(slab.rows.num_rows, slab.nbytes))
        for index, step in enumerate(slab.steps):
            # What it will weigh: the rows, and what the transform makes of them, by what it made of others. Before
            # anything is known, one batch goes ahead.
            growth = self._transform.growth
            weight = int(slab.step_bytes * (1 + growth)) if growth is not None else self._limit
            if not self._pipe.room(weight):
                return False
            self._clock.produce("transform")
            ticket = Ticket(slab.size, weight)
            future = self._transform.start(Batch(self._origin, slab, index, step))
            if not self._pipe.append(future, ticket):
                return False
            future.add_done_callback(functools.partial(self._weigh, ticket))
        return True

    def _weigh(self, ticket: Ticket, future: Future[Batch]) -> None:
        self._pipe.weigh(ticket, 0 if future.exception() is not None else future.result().held)
