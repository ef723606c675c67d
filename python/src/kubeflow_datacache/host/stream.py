# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""HostStream: in the reader of a host, the blocks of one epoch from a step on, for several ranks."""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import pickle
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from kubeflow_datacache.fetch.merge import Merge
from kubeflow_datacache.host import protocol
from kubeflow_datacache.host.protocol import Block
from kubeflow_datacache.order.packed import RankSteps
from kubeflow_datacache.rows.block import StepBlock
from kubeflow_datacache.rows.gather import concatenate
from kubeflow_datacache.rows.widen import marked

_MOST_BLOCKS: Final = 64  # published and not taken; a rank's socket has room for their packets
_SLACK: Final = 1 << 12  # bytes of an IPC stream beside the schema and the batch
_ALIGNED: Final = 64  # bytes: where parts begin
_GROUP_SHARE: Final = 4  # steps that are passed at once have at least this part of the limit
_GROUP_SECONDS: Final = 0.05  # or were so long in coming


@dataclass(eq=False)
class Client:
    """A rank that is connected. part: which of the parts of each step it wants. taken: how many blocks it has copied.
    slots: the memory that it has received."""

    connection: socket.socket
    part: int = 0
    taken: int = 0
    slots: set[int] = field(default_factory=set[int])

    def send(self, packet: bytes, memory: int | None = None) -> None:
        """Sends a packet. A rank that is gone, or whose socket is full, is disconnected, and reads alone."""
        try:
            if memory is None:
                self.connection.send(packet, socket.MSG_DONTWAIT)
            else:
                socket.send_fds(self.connection, [packet], [memory], socket.MSG_DONTWAIT)
        except OSError:
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)


@dataclass(frozen=True)
class Slot:
    """Shared memory that holds one block at a time."""

    number: int
    memory: int
    mapped: mmap.mmap


@dataclass(frozen=True)
class Published:
    """A block that ranks can take: its parts, and their memory. size: the bytes of all parts."""

    parts: list[Block]
    slot: Slot
    size: int


class HostStream:
    """Reads blocks ahead in a thread, and passes parts of each to `ranks` ranks. Stop it.

    A block stays until all ranks have taken it, counting those that have not joined yet, and leaving out those that
    have left. steps: those of the plan, where they depend on lengths; each is passed with its rows. bounds: where the
    parts of a block's rows begin in each of its steps, and the rows of a step. limit: bytes of blocks that were
    published and not taken by all, or one block if that is larger. Safe for concurrent use.
    """

    def __init__(
        self,
        merge: Merge,
        steps: RankSteps[Any] | None,
        bounds: Callable[[StepBlock], list[int]],
        step: int,
        *,
        ranks: int,
        limit: int,
    ) -> None:
        merge.widen = marked
        self._merge, self._steps, self._bounds, self._ranks, self._limit = merge, steps, bounds, ranks, limit
        self._changed = threading.Condition()
        self._clients: set[Client] = set()
        self._joined = 0
        self._first = 0  # number of the first block that is kept
        self._kept: deque[Published] = deque()
        self._slots: list[Slot] = []
        self._last: bytes | None = None  # END or FAILED, when nothing follows
        self._stopped = self._full = False
        self._thread = threading.Thread(target=self._run, args=(step,), name="datacache-host", daemon=True)
        self._thread.start()

    def join(self, client: Client) -> bool:
        """Adds a rank, which gets all blocks. Returns False if all ranks have joined, or the stream has failed."""
        with self._changed:
            if self._joined == self._ranks or self._stopped:
                return False
            self._joined += 1
            self._clients.add(client)
            client.send(protocol.JOINED)
            for block in self._kept:
                self._send(client, block)
            if self._last is not None:
                client.send(self._last)
            return True

    def leave(self, client: Client) -> None:
        """Removes a rank. The stream ends when none is left."""
        with self._changed:
            self._clients.discard(client)
            self._stopped = self._stopped or not self._clients
            self._release()
        if self._stopped:
            self._merge.stop()

    def take(self, client: Client, count: int) -> None:
        """A rank has copied `count` blocks so far."""
        with self._changed:
            client.taken = max(client.taken, count)
            self._release()

    @property
    def state(self) -> bytes:
        """What the stream waits for: READS or FULL."""
        return protocol.FULL if self._full else protocol.READS

    def _release(self) -> None:
        taken = min((client.taken for client in self._clients), default=0) if self._joined == self._ranks else 0
        while self._kept and self._first < taken:
            self._kept.popleft()
            self._first += 1
        self._changed.notify_all()

    def _run(self, step: int) -> None:
        try:
            for blocks in self._groups(self._merge.blocks(step)):
                if not self._publish(blocks):
                    break
            last = protocol.END
        except BaseException as error:
            last = protocol.FAILED + f"{type(error).__name__}: {error}".encode()[: protocol.MOST_BYTES - 1]
        with self._changed:
            self._last = last
            for client in self._clients:
                client.send(last)
            while not self._stopped:
                self._changed.wait()
        for slot in self._slots:
            slot.mapped.close()
            os.close(slot.memory)

    def _groups(self, blocks: Iterator[StepBlock]) -> Iterator[list[StepBlock]]:
        """What is passed at once: a block, or where steps depend on lengths, which are a block each, several of them.

        At first a single one, so that the first batch comes early, and none waits long for those after it. Types are
        equal: a node that answers again while it loads sends integers as wide as the table's.
        """
        most, group, began = 1, list[StepBlock](), 0.0
        for block in blocks:
            if group and not block.rows.schema.equals(group[0].rows.schema):
                yield group
                group = []
            began = began if group else time.monotonic()
            group.append(block)
            large = sum(each.nbytes for each in group) >= self._limit // _GROUP_SHARE
            if self._steps is None or large or len(group) >= most or time.monotonic() - began > _GROUP_SECONDS:
                yield group
                most, group = 4 * len(group), []
        if group:
            yield group

    def _publish(self, blocks: list[StepBlock]) -> bool:
        """Waits for room, and passes blocks to the ranks. Returns False if the stream has ended."""
        with self._changed:
            while not self._stopped and self._kept and not self._has_room(sum(rows.nbytes for rows in blocks)):
                self._full = True
                self._changed.wait()
            self._full = False
        if self._stopped:
            return False
        block = self._divided(blocks[0]) if self._steps is None else self._planned(blocks, self._steps)
        with self._changed:
            self._kept.append(block)
            for client in self._clients:
                self._send(client, block)
        return True

    def _divided(self, rows: StepBlock) -> Published:
        """The parts of a block, written to shared memory."""
        steps, count, bounds = rows.steps, len(rows.steps), self._bounds(rows)
        sizes = [last - first for first, last in itertools.pairwise(bounds)]
        pairs = zip(bounds, sizes, strict=False)
        parts = [rows.rows.slice(first * count, size * count) for first, size in pairs]
        return self._written(parts, sizes, steps, b"")

    def _planned(self, blocks: list[StepBlock], steps: RankSteps[Any]) -> Published:
        """Blocks of a step each and the plans of these, written to shared memory."""
        plan = pickle.dumps([steps.pop(rows.steps[0]) for rows in blocks])
        whole = concatenate([rows.rows for rows in blocks], blocks[0].rows.schema)
        return self._written([whole], [0], range(blocks[0].steps[0], blocks[-1].steps[-1] + 1), plan)

    def _written(self, parts: list[pa.RecordBatch], sizes: list[int], steps: range, plan: bytes) -> Published:
        """Writes parts of some steps to shared memory. sizes: the rows of a step in each."""
        schema, written = parts[0].schema, list[Block]()
        beside = schema.serialize().size + len(plan) + _SLACK
        slot = self._slot(sum(pa.ipc.get_record_batch_size(part) + beside for part in parts))
        sink = pa.FixedSizeBufferWriter(pa.py_buffer(memoryview(slot.mapped)))
        for part, size in zip(parts, sizes, strict=True):
            sink.write(bytes(-sink.tell() % _ALIGNED))
            begin = sink.tell()
            with pa.ipc.new_stream(sink, schema) as writer:
                writer.write_batch(part)
            sink.write(plan)
            place = (slot.number, len(slot.mapped), begin, sink.tell() - begin, len(plan))
            written.append(Block(*place, size, steps.start, steps.stop, steps.step))
        return Published(written, slot, sink.tell())

    def _has_room(self, nbytes: int) -> bool:
        held = sum(block.size for block in self._kept)
        return held + nbytes <= self._limit and len(self._kept) < _MOST_BLOCKS

    def _slot(self, size: int) -> Slot:
        """Memory that no kept block is in: the first, so that few are ever written to."""
        with self._changed:
            used = {block.slot.number for block in self._kept}
        for slot in self._slots:
            if slot.number not in used and len(slot.mapped) >= size:
                return slot
        capacity = -(-max(size, self._limit) // mmap.PAGESIZE) * mmap.PAGESIZE
        slot = Slot(len(self._slots), *protocol.create_memory(capacity))
        self._slots.append(slot)
        return slot

    def _send(self, client: Client, block: Published) -> None:
        slot = block.slot
        client.send(block.parts[client.part].packed(), None if slot.number in client.slots else slot.memory)
        client.slots.add(slot.number)
