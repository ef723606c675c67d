# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Shared memory that is used again: a worker writes rows, the main process reads them in place and frees the memory.

torch maps, clears and sends a new file for every tensor, which costs several times as much as copying its bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final, NamedTuple

import pyarrow as pa
import torch
from torch import Tensor

_HEADER: Final = 64  # bytes before the rows; the first is 1 from when they are written until they are freed


class Sent(NamedTuple):
    """A segment as it is sent: the pool that it is of, its number there, and how many bytes were written.

    memory: the segment itself when it is sent for the first time, None afterwards.
    """

    reader: str
    worker: int
    pool: str
    number: int
    size: int
    memory: Tensor | None


class SegmentPool:
    """The segments of one worker in one iteration. For one thread.

    reader names the loader that receives them; grain: segments are multiples of so many bytes.
    """

    def __init__(self, reader: str, worker: int, grain: int) -> None:
        self._reader, self._worker, self._grain = reader, worker, grain
        self._name = os.urandom(8).hex()
        self._segments: list[Tensor] = []

    def write(self, parts: list[pa.RecordBatch]) -> Sent:
        """Writes record batches of one schema as an Arrow stream, into a free segment if one is large enough."""
        schema = parts[0].schema
        size = schema.serialize().size + sum(map(pa.ipc.get_record_batch_size, parts)) + 8  # and the mark of its end
        number = self._free(size)
        fresh = number == len(self._segments)
        if fresh:
            self._segments.append(shared(-(-(_HEADER + size) // self._grain) * self._grain))
        memory = self._segments[number]
        memory.numpy()[0] = 1
        with pa.ipc.new_stream(pa.FixedSizeBufferWriter(pa.py_buffer(_rows(memory, size).numpy())), schema) as out:
            for part in parts:
                out.write_batch(part)
        return Sent(self._reader, self._worker, self._name, number, size, memory if fresh else None)

    def _free(self, size: int) -> int:
        """The number of a free segment of at least so many bytes; that of a new one if there is none."""
        for number, memory in enumerate(self._segments):
            if len(memory) >= _HEADER + size and not memory.numpy()[0]:
                return number
        return len(self._segments)


class Received:
    """Rows in a segment that was sent. The segment is free again when nothing refers to their memory any more."""

    def __init__(self, sent: Sent) -> None:
        pool = _pools.setdefault((sent.reader, sent.worker), _Pool(sent.pool, {}))
        if pool.name != sent.pool:  # the worker has begun another iteration
            pool = _pools[sent.reader, sent.worker] = _Pool(sent.pool, {})
        if sent.memory is not None:
            pool.segments[sent.number] = sent.memory
        memory = pool.segments[sent.number]
        self.memory = _rows(memory, sent.size)
        self._lease = _Lease(memory)

    def read(self) -> list[pa.RecordBatch]:
        """The record batches, over the segment's memory."""
        return read(pa.foreign_buffer(self.memory.data_ptr(), len(self.memory), self._lease))


def read(stream: pa.Buffer) -> list[pa.RecordBatch]:
    """The record batches of an Arrow stream, over its memory."""
    return list(pa.ipc.open_stream(stream))


def forget(reader: str) -> None:
    """Drops the segments that a loader received; rows that are still referred to stay valid."""
    for key in [key for key in _pools if key[0] == reader]:
        _pools.pop(key, None)


def shared(size: int) -> Tensor:
    """A new piece of shared memory, uint8, (size,)."""
    storage = torch.UntypedStorage._new_shared(size)  # pyright: ignore[reportPrivateUsage] - as torch's default_collate
    return torch.empty(0, dtype=torch.uint8).set_(storage)  # pyright: ignore[reportArgumentType] - an untyped storage will do


class _Pool(NamedTuple):
    """What was received of a pool: its segments by number."""

    name: str
    segments: dict[int, Tensor]


class _Lease:
    """Frees a segment when it is destroyed, in the process that received it: a forked child has a copy of the lease."""

    __slots__ = ("_memory", "_process")

    def __init__(self, memory: Tensor) -> None:
        self._memory, self._process = memory, os.getpid()

    def __del__(self, getpid: Callable[[], int] = os.getpid) -> None:  # os may be gone when the interpreter ends
        if self._process == getpid():
            self._memory.numpy()[0] = 0


def _rows(memory: Tensor, size: int) -> Tensor:
    return memory[_HEADER : _HEADER + size]


_pools: Final[dict[tuple[str, int], _Pool]] = {}
