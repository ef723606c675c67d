# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A memory allocator that reuses freed memory for received rows."""

from __future__ import annotations

import bisect
import mmap
import os
import threading
from collections import deque
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

_ARENA: Final = 32 << 20  # bytes per mapping; the kernel allocates a page at its first write
_GRAIN: Final = 4096  # sizes of pieces are multiples of this
_SMALL: Final = 1 << 16  # smaller requests use malloc, which is as fast; small pieces would also fragment the arenas


class Piece(NamedTuple):
    """Bytes [first, last) of an arena."""

    arena: Arena
    first: int
    last: int


class Arena:
    """One memory mapping and its free ranges [first, last), sorted and never adjacent. Not thread-safe.

    Uses ordinary pages: on a loaded machine with fragmented memory, the kernel took longer to find huge pages for
    MADV_HUGEPAGE than to clear small ones.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.address = np.frombuffer(self.memory, np.uint8).ctypes.data
        self._free = [(0, size)]

    @property
    def empty(self) -> bool:
        """Whether the whole arena is free."""
        return self._free == [(0, self.size)]

    def allocate(self, size: int) -> Piece | None:
        """Allocates the first free range of `size` bytes; None if there is none."""
        for i, (first, last) in enumerate(self._free):
            if last - first >= size:
                self._free[i : i + 1] = [(first + size, last)] if last - first > size else []
                return Piece(self, first, first + size)
        return None

    def free(self, first: int, last: int) -> None:
        """Frees a range that was allocated."""
        at = bisect.bisect(self._free, (first, last))
        low, high = at, at
        if at and self._free[at - 1][1] == first:
            low, first = at - 1, self._free[at - 1][0]
        if at < len(self._free) and self._free[at][0] == last:
            high, last = at + 1, self._free[at][1]
        self._free[low:high] = [(first, last)]


class Heap:
    """Allocates memory, and frees it when no Arrow buffer, array or tensor refers to it any more.

    malloc returns large blocks to the system, or keeps them for one thread while another needs memory. The kernel then
    clears new pages for every message, which costs at least 0.4 CPU-seconds per GB. Allocating the first free range
    reuses recently used memory. Safe for concurrent use and in a forked child.
    """

    def __init__(self) -> None:
        self._arenas: list[Arena] = []
        self._kept = 0
        # Freed pieces wait here until the next allocation: the garbage collector may free one at any time, even in a
        # thread that holds the lock.
        self._returned: deque[Piece] = deque()
        self._lock = threading.Lock()

    def keep(self, nbytes: int) -> None:
        """Keeps up to nbytes of freed memory for reuse; the largest value of all calls applies."""
        self._kept = max(self._kept, nbytes)

    @property
    def nbytes(self) -> int:
        """The number of mapped bytes, allocated or free."""
        return sum(arena.size for arena in self._arenas)

    def allocate(self, nbytes: int) -> tuple[pa.Buffer, memoryview]:
        """Allocates a buffer. Returns it and a view to fill it before others read it. Aligned to 4096 bytes, small ones
        to 64."""
        if nbytes < _SMALL:
            small = pa.allocate_buffer(nbytes, memory_pool=pa.system_memory_pool())
            return small, memoryview(small).cast("B")
        with self._lock:
            piece = self._allocate(-(-nbytes // _GRAIN) * _GRAIN)
        arena = piece.arena
        buffer = pa.foreign_buffer(arena.address + piece.first, nbytes, _Lease(piece, self._returned))
        return buffer, memoryview(arena.memory)[piece.first : piece.first + nbytes]

    def forked(self) -> None:
        """In a forked child: replaces the lock, which a thread of the parent may have held."""
        self._lock = threading.Lock()

    def _allocate(self, size: int) -> Piece:
        if self._returned:
            while self._returned:
                arena, first, last = self._returned.popleft()
                arena.free(first, last)
            self._trim()
        for arena in self._arenas:
            if piece := arena.allocate(size):
                return piece
        arena = Arena(max(_ARENA, size))
        self._arenas.append(arena)
        piece = arena.allocate(size)
        assert piece is not None
        return piece

    def _trim(self) -> None:
        """Unmaps empty arenas beyond the number of bytes to keep."""
        empty = [arena for arena in self._arenas if arena.empty]
        while sum(arena.size for arena in empty) > self._kept:
            self._arenas.remove(empty.pop())


class _Lease:
    """Frees a piece when the buffer that uses it is destroyed."""

    __slots__ = ("_piece", "_returned")

    def __init__(self, piece: Piece, returned: deque[Piece]) -> None:
        self._piece, self._returned = piece, returned

    def __del__(self) -> None:
        self._returned.append(self._piece)


HEAP: Final = Heap()
os.register_at_fork(after_in_child=HEAP.forked)
