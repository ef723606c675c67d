# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A queue of batches for the consumer, bounded in bytes."""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Ticket:
    """One item's place in a pipe, and its weight there."""

    __slots__ = ("inside", "nbytes", "rows")

    def __init__(self, rows: int, nbytes: int) -> None:
        self.rows, self.nbytes = rows, nbytes
        self.inside = True


class Pipe(Generic[Item]):
    """A queue of at most `limit` bytes, or of one item if that is larger. For one producer and one consumer.

    What an item weighs may be told anew, from any thread, while it is inside.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._changed = threading.Condition()
        self._items: deque[tuple[Item, Ticket]] = deque()
        self._ended = False
        self._error: BaseException | None = None
        self._rows = self._bytes = 0

    def room(self, nbytes: int) -> bool:
        """Waits for room for so many bytes; False once the pipe is closed."""
        with self._changed:
            while self._items and self._bytes + nbytes > self._limit and not self._ended:
                self._changed.wait()
            return not self._ended

    def put(self, item: Item, ticket: Ticket) -> bool:
        """Waits for room and appends; False once the pipe is closed."""
        return self.room(ticket.nbytes) and self.append(item, ticket)

    def append(self, item: Item, ticket: Ticket) -> bool:
        """Appends, whether there is room or not; False once the pipe is closed."""
        with self._changed:
            if self._ended:
                return False
            self._items.append((item, ticket))
            self._rows, self._bytes = self._rows + ticket.rows, self._bytes + ticket.nbytes
            self._changed.notify_all()
            return True

    def weigh(self, ticket: Ticket, nbytes: int) -> None:
        """Says what an item that was appended weighs now."""
        with self._changed:
            if ticket.inside:
                self._bytes += nbytes - ticket.nbytes
                ticket.nbytes = nbytes
                self._changed.notify_all()

    def end(self, error: BaseException | None = None) -> None:
        """No more items: the consumer gets what is in the pipe, then the error or the end."""
        with self._changed:
            self._ended, self._error = True, error
            self._changed.notify_all()

    def depth(self) -> tuple[int, int]:
        """Rows and bytes that are in the pipe."""
        with self._changed:
            return self._rows, self._bytes

    @property
    def waiting(self) -> bool:
        """Whether get would wait."""
        return not self._items and not self._ended

    def get(self) -> Item | None:
        """The next item, waiting for it; None at the end."""
        with self._changed:
            while not self._items and not self._ended:
                self._changed.wait()
            if not self._items:
                if self._error is not None:
                    raise self._error
                return None
            item, ticket = self._items.popleft()
            ticket.inside = False
            self._rows, self._bytes = self._rows - ticket.rows, self._bytes - ticket.nbytes
            self._changed.notify_all()
            return item
