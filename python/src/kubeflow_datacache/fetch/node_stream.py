# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""NodeStream: reads one data node's rows of an epoch ahead, in a thread."""

from __future__ import annotations

import contextlib
import math
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import pyarrow as pa

from kubeflow_datacache.codes import CALL_ERRORS
from kubeflow_datacache.errors import DataCacheError
from kubeflow_datacache.fetch.exchange import busy_seconds
from kubeflow_datacache.fetch.retry import Attempts
from kubeflow_datacache.h2.connection import Progress
from kubeflow_datacache.h2.reader import ChunkReader, Reader
from kubeflow_datacache.monitoring.stage_timer import StageTimer

_LOOK_SECONDS: Final = 0.01  # how often a wait for a data node looks at what arrives


class Opening(NamedTuple):
    """How to open or resume a stream. skip: number of its first rows to drop, as they were received before."""

    read: Callable[[], ChunkReader]
    skip: int


class NodeStream:
    """Reads one data node's stream into a queue of at most `quota()` bytes, or of one message if that is larger.

    A broken stream is reopened with reopen(node, rows received so far), which asks the head where to resume; the
    consumer does not notice. ended() is called after the last message. timer_key: the stream's number in the timer, if
    not that of the node. Two threads use a NodeStream: its own, and the one that calls take.
    """

    def __init__(
        self,
        node: int,
        opening: Opening,
        *,
        reopen: Callable[[int, int], Opening | None],
        quota: Callable[[], float],
        ended: Callable[[], None],
        attempts: Attempts,
        stop: threading.Event,
        timer: StageTimer,
        timer_key: int | None = None,
    ) -> None:
        self.node = node
        self._key = node if timer_key is None else timer_key
        self.reconnects = 0
        self._ended = False
        self._rows = self._bytes = 0  # contents of the queue
        self._opening, self._reopen, self._quota, self._on_end = opening, reopen, quota, ended
        self._attempts, self._stop, self._timer = attempts, stop, timer
        self._ready: deque[tuple[pa.RecordBatch, int]] = deque()
        self._changed = threading.Condition()
        self._received = 0
        self._error: Exception | None = None
        self._reader: ChunkReader | None = None
        self._progress = Progress(0, False, 0.0)  # at the last look
        self._thread = threading.Thread(target=self._run, name=f"datacache-node-{node}", daemon=True)
        self._thread.start()

    def take(self, count: int) -> Iterator[pa.RecordBatch]:
        """Yields the next `count` rows, cut as in the received messages; waits for each message.

        Raises DataCacheError if the stream ends before that.
        """
        while count:
            batch = self._next(count)
            count -= batch.num_rows
            yield batch

    def depth(self) -> tuple[int, int]:
        """The rows and bytes that were read ahead."""
        with self._changed:
            return self._rows, self._bytes

    @property
    def drained(self) -> bool:
        """Whether the stream has ended and all its rows were taken."""
        return self._ended and not self._ready

    def close(self) -> None:
        """Stops reading; the thread ends soon after. The stop event must be set before."""
        with self._changed:
            self._changed.notify_all()
            reader = self._reader
        if reader is not None:
            with contextlib.suppress(*CALL_ERRORS):
                reader.cancel()

    def join(self, seconds: float) -> None:
        """Waits until the thread has ended."""
        self._thread.join(seconds)

    def _next(self, most: int) -> pa.RecordBatch:
        with self._changed:
            if not self._ready:
                self._timer.set_producer(self._key)
                while not self._ready:
                    if self._stop.is_set():
                        raise DataCacheError("the loader was closed while it read")
                    if self._error is not None:
                        raise self._error
                    if self._ended:
                        raise DataCacheError(
                            f"data node {self.node} ended its stream {most} or more rows early: a fault of the server,"
                            " no row was passed on in their place"
                        )
                    if not self._changed.wait(_LOOK_SECONDS):
                        self._look()
                self._timer.set_producer("decode")
            batch, size = self._ready.popleft()
            if batch.num_rows > most:
                rest = size - size * most // batch.num_rows
                self._ready.appendleft((batch.slice(most), rest))
                batch, size = batch.slice(0, most), size - rest
            self._bytes -= size
            self._rows -= batch.num_rows
            self._changed.notify_all()
            return batch

    def _look(self) -> None:
        """Tells the timer whether the kernel received anything from the data node since the last look."""
        progress = self._reader.progress() if isinstance(self._reader, Reader) else None
        if progress is not None:
            before, self._progress = self._progress, progress
            self._timer.sample(self._key, silent=before.received == progress.received and not progress.lost)

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                try:
                    self._read(self._opening)
                    break
                except CALL_ERRORS as error:
                    if self._stop.is_set() or not self._resume(error):
                        break
        except Exception as error:
            self._error = error
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._on_end()

    def _resume(self, error: Exception) -> bool:
        """Waits and reopens the stream where it broke. Returns False if no rows are left to read."""
        self._timer.set_asking_head(self._key, True)
        try:
            self._attempts.failed(error)
            self.reconnects += 1
            with self._attempts.not_counted():  # the head is asked
                opening = self._reopen(self.node, self._received)
        finally:
            self._timer.set_asking_head(self._key, False)
        if opening is None:
            return False
        self._opening = opening
        return True

    def _read(self, opening: Opening) -> None:
        reader = opening.read()
        with self._changed:
            self._reader = reader
        skip = opening.skip
        unknown = math.inf  # without busy_us, the first wait counts as the server's time, later ones as the network's
        try:
            while not self._stop.is_set():
                try:
                    batch, app_metadata = reader.read_chunk()
                except StopIteration:
                    if skip:
                        raise DataCacheError(
                            f"data node {self.node} now has {skip} rows less of this epoch than before: a fault of the"
                            " server, no row was passed on in their place"
                        ) from None
                    return
                busy = unknown if app_metadata is None else busy_seconds(app_metadata)
                transfer = reader.transfer if isinstance(reader, Reader) else math.inf
                self._timer.message_received(self._key, busy, transfer=transfer, round_trip=self._progress.round_trip)
                unknown = 0.0
                dropped = min(skip, batch.num_rows)
                skip -= dropped
                if dropped < batch.num_rows:
                    self._put(batch.slice(dropped))
                    self._attempts.succeeded()
        finally:
            if self._stop.is_set():
                with contextlib.suppress(*CALL_ERRORS):
                    reader.cancel()

    def _put(self, batch: pa.RecordBatch) -> None:
        size = batch.get_total_buffer_size()  # the size of the message body; nbytes would release the GIL twice
        with self._changed:
            self._received += batch.num_rows
            self._ready.append((batch, size))
            self._bytes += size
            self._rows += batch.num_rows
            self._changed.notify_all()
            while self._bytes >= self._quota() and self._ready and not self._stop.is_set():
                self._changed.wait()
