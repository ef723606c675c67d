# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Memory for rows that pass through: fetched from the system once, and used again and again."""

from __future__ import annotations

import bisect
import mmap
import os
import threading
from collections import deque
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

_ARENA: Final = 32 << 20  # bytes that are mapped at once; the kernel makes their pages when they are first written
_GRAIN: Final = 4096  # bytes of which pieces are multiples
_SMALL: Final = 1 << 16  # below, malloc does as well, and no few bytes keep a large piece from being used again


class Piece(NamedTuple):
    """Bytes [first, last) of an arena."""

    arena: Arena
    first: int
    last: int


class Arena:
    """One mapping, and which parts of it are free: [first, last), ascending, no two adjacent. For one thread.

    Ordinary pages: under load, on a machine whose memory is in pieces, the kernel took longer to find large ones for
    MADV_HUGEPAGE than to clear small ones.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.address = np.frombuffer(self.memory, np.uint8).ctypes.data
        self._free = [(0, size)]

    @property
    def empty(self) -> bool:
        """Whether all of it is free."""
        return self._free == [(0, self.size)]

    def take(self, size: int) -> Piece | None:
        """The first free part of so many bytes; None where there is none."""
        for i, (first, last) in enumerate(self._free):
            if last - first >= size:
                self._free[i : i + 1] = [(first + size, last)] if last - first > size else []
                return Piece(self, first, first + size)
        return None

    def give(self, first: int, last: int) -> None:
        """Makes a part free that was taken."""
        at = bisect.bisect(self._free, (first, last))
        low, high = at, at
        if at and self._free[at - 1][1] == first:
            low, first = at - 1, self._free[at - 1][0]
        if at < len(self._free) and self._free[at][0] == last:
            high, last = at + 1, self._free[at][1]
        self._free[low:high] = [(first, last)]


class Heap:
    """Gives out memory, and takes it back when no Arrow buffer, array or tensor looks at it any more.

    malloc would do, but for what it gives back to the system, or keeps for one thread when another asks: the kernel
    then clears the pages of message after message anew, 0.4 CPU-seconds a GB and more. The first free place is taken,
    so that what was used is used again soon. Safe for concurrent use, and in a forked child.
    """

    def __init__(self) -> None:
        self._arenas: list[Arena] = []
        self._kept = 0
        # What comes back waits here for the next allocation: the garbage collector gives back at any time, also to a
        # thread that holds the lock.
        self._returned: deque[Piece] = deque()
        self._lock = threading.Lock()

    def keep(self, nbytes: int) -> None:
        """Lets the process keep nbytes of freed memory, or what an earlier call said if that is more."""
        self._kept = max(self._kept, nbytes)

    @property
    def nbytes(self) -> int:
        """Bytes that are mapped, given out or not."""
        return sum(arena.size for arena in self._arenas)

    def allocate(self, nbytes: int) -> tuple[pa.Buffer, memoryview]:
        """A buffer, and its memory to be written before others read it. Aligned to 4096 bytes, small ones to 64."""
        if nbytes < _SMALL:
            small = pa.allocate_buffer(nbytes, memory_pool=pa.system_memory_pool())
            return small, memoryview(small).cast("B")
        with self._lock:
            piece = self._take(-(-nbytes // _GRAIN) * _GRAIN)
        arena = piece.arena
        buffer = pa.foreign_buffer(arena.address + piece.first, nbytes, _Lease(piece, self._returned))
        return buffer, memoryview(arena.memory)[piece.first : piece.first + nbytes]

    def forked(self) -> None:
        """For a child that was forked: a thread that only its parent has may have held the lock."""
        self._lock = threading.Lock()

    def _take(self, size: int) -> Piece:
        if self._returned:
            while self._returned:
                arena, first, last = self._returned.popleft()
                arena.give(first, last)
            self._trim()
        for arena in self._arenas:
            if piece := arena.take(size):
                return piece
        arena = Arena(max(_ARENA, size))
        self._arenas.append(arena)
        piece = arena.take(size)
        assert piece is not None
        return piece

    def _trim(self) -> None:
        """Gives empty arenas back to the system, as far as they are more than is to be kept."""
        empty = [arena for arena in self._arenas if arena.empty]
        while sum(arena.size for arena in empty) > self._kept:
            self._arenas.remove(empty.pop())


class _Lease:
    """Gives a piece back when the buffer over it is gone."""

    __slots__ = ("_piece", "_returned")

    def __init__(self, piece: Piece, returned: deque[Piece]) -> None:
        self._piece, self._returned = piece, returned

    def __del__(self) -> None:
        self._returned.append(self._piece)


HEAP: Final = Heap()
os.register_at_fork(after_in_child=HEAP.forked)
