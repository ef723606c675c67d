# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A queue bounded in bytes."""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class QueueEntry:
    """The size of a queued item, and whether it is still in the queue."""

    __slots__ = ("inside", "nbytes", "rows")

    def __init__(self, rows: int, nbytes: int) -> None:
        self.rows, self.nbytes = rows, nbytes
        self.inside = True


class ByteQueue(Generic[Item]):
    """A queue of at most `limit` bytes, or of one item if that is larger. For one producer and one consumer.

    While an item is in the queue, any thread may change its size.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._changed = threading.Condition()
        self._items: deque[tuple[Item, QueueEntry]] = deque()
        self._closed = False
        self._error: BaseException | None = None
        self._rows = self._bytes = 0

    def wait_for_room(self, nbytes: int) -> bool:
        """Waits until nbytes fit into the queue. Returns False if the queue is closed."""
        with self._changed:
            while self._items and self._bytes + nbytes > self._limit and not self._closed:
                self._changed.wait()
            return not self._closed

    def put(self, item: Item, entry: QueueEntry) -> bool:
        """Waits for room and appends the item. Returns False if the queue is closed."""
        return self.wait_for_room(entry.nbytes) and self.append(item, entry)

    def append(self, item: Item, entry: QueueEntry) -> bool:
        """Appends the item even if the queue is full. Returns False if the queue is closed."""
        with self._changed:
            if self._closed:
                return False
            self._items.append((item, entry))
            self._rows, self._bytes = self._rows + entry.rows, self._bytes + entry.nbytes
            self._changed.notify_all()
            return True

    def resize(self, entry: QueueEntry, nbytes: int) -> None:
        """Changes the size of an item that was appended; ignored once the item has left the queue."""
        with self._changed:
            if entry.inside:
                self._bytes += nbytes - entry.nbytes
                entry.nbytes = nbytes
                self._changed.notify_all()

    def close(self, error: BaseException | None = None) -> None:
        """Closes the queue. The consumer gets the remaining items, then the error or the end."""
        with self._changed:
            self._closed, self._error = True, error
            self._changed.notify_all()

    def depth(self) -> tuple[int, int]:
        """The rows and bytes in the queue."""
        with self._changed:
            return self._rows, self._bytes

    @property
    def would_block(self) -> bool:
        """Whether get() would block."""
        return not self._items and not self._closed

    def get(self) -> Item | None:
        """Waits for the next item and returns it; None at the end."""
        with self._changed:
            while not self._items and not self._closed:
                self._changed.wait()
            if not self._items:
                if self._error is not None:
                    raise self._error
                return None
            item, entry = self._items.popleft()
            entry.inside = False
            self._rows, self._bytes = self._rows - entry.rows, self._bytes - entry.nbytes
            self._changed.notify_all()
            return item
