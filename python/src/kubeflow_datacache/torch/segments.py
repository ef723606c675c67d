# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Reusable shared-memory segments: a worker writes rows, the main process reads them in place and frees the segment.

torch creates, maps and clears a new file for every tensor, which costs several times as much as copying its bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final, NamedTuple

import pyarrow as pa
import torch
from torch import Tensor

_HEADER: Final = 64  # size of the header before the rows; its first byte is 1 while the segment is in use


class SegmentRef(NamedTuple):
    """A reference to a segment, as sent between processes: its pool, its number in the pool, and the number of bytes
    used.

    memory: the segment itself when it is sent for the first time, None afterwards.
    """

    reader: str
    worker: int
    pool: str
    number: int
    size: int
    memory: Tensor | None


class SegmentPool:
    """The segments of one worker in one iteration. Not thread-safe.

    reader identifies the receiving loader. grain: sizes of segments are multiples of this many bytes.
    """

    def __init__(self, reader: str, worker: int, grain: int) -> None:
        self._reader, self._worker, self._grain = reader, worker, grain
        self._name = os.urandom(8).hex()
        self._segments: list[Tensor] = []

    def write(self, parts: list[pa.RecordBatch]) -> SegmentRef:
        """Writes record batches with one schema as an Arrow stream into a free segment, or into a new one if none is
        large enough."""
        schema = parts[0].schema
        size = schema.serialize().size + sum(map(pa.ipc.get_record_batch_size, parts)) + 8  # the end-of-stream marker
        number = self._free(size)
        fresh = number == len(self._segments)
        if fresh:
            self._segments.append(shared_memory(-(-(_HEADER + size) // self._grain) * self._grain))
        memory = self._segments[number]
        memory.numpy()[0] = 1
        with pa.ipc.new_stream(pa.FixedSizeBufferWriter(pa.py_buffer(_rows(memory, size).numpy())), schema) as out:
            for part in parts:
                out.write_batch(part)
        return SegmentRef(self._reader, self._worker, self._name, number, size, memory if fresh else None)

    def _free(self, size: int) -> int:
        """The number of a free segment with at least `size` bytes; the number of a new one if there is none."""
        for number, memory in enumerate(self._segments):
            if len(memory) >= _HEADER + size and not memory.numpy()[0]:
                return number
        return len(self._segments)


class ReceivedSegment:
    """The rows in a received segment. Frees the segment when nothing refers to their memory any more."""

    def __init__(self, sent: SegmentRef) -> None:
        pool = _pools.setdefault((sent.reader, sent.worker), _Pool(sent.pool, {}))
        if pool.name != sent.pool:  # the worker has started another iteration
            pool = _pools[sent.reader, sent.worker] = _Pool(sent.pool, {})
        if sent.memory is not None:
            pool.segments[sent.number] = sent.memory
        memory = pool.segments[sent.number]
        self.memory = _rows(memory, sent.size)
        self._lease = _Lease(memory)

    def read(self) -> list[pa.RecordBatch]:
        """The record batches, as views of the segment."""
        return read(pa.foreign_buffer(self.memory.data_ptr(), len(self.memory), self._lease))


def read(stream: pa.Buffer) -> list[pa.RecordBatch]:
    """The record batches of an Arrow stream, as views of its memory."""
    return list(pa.ipc.open_stream(stream))


def drop_segments(reader: str) -> None:
    """Drops the segments that a loader received; rows that are still in use stay valid."""
    for key in [key for key in list(_pools) if key[0] == reader]:
        _pools.pop(key, None)


def shared_memory(size: int) -> Tensor:
    """Creates a block of shared memory, uint8, shape (size,)."""
    storage = torch.UntypedStorage._new_shared(size)  # pyright: ignore[reportPrivateUsage] - as torch's default_collate
    return torch.empty(0, dtype=torch.uint8).set_(storage)  # pyright: ignore[reportArgumentType] - an untyped storage will do


class _Pool(NamedTuple):
    """The received segments of a pool, by number."""

    name: str
    segments: dict[int, Tensor]


class _Lease:
    """Frees a segment when destroyed, but only in the process that received it: a forked child has a copy of this
    object."""

    __slots__ = ("_memory", "_process")

    def __init__(self, memory: Tensor) -> None:
        self._memory, self._process = memory, os.getpid()

    # a default argument, as `os` may be gone when the interpreter exits
    def __del__(self, getpid: Callable[[], int] = os.getpid) -> None:
        if self._process == getpid():
            self._memory.numpy()[0] = 0


def _rows(memory: Tensor, size: int) -> Tensor:
    return memory[_HEADER : _HEADER + size]


_pools: Final[dict[tuple[str, int], _Pool]] = {}
