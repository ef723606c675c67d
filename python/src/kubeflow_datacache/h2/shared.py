# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Shared: memory to which servers of this user on this machine write messages, instead of sending them."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import socket
import struct
import sys
import weakref
from collections import deque
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from kubeflow_datacache.h2.errors import ProtocolError
from kubeflow_datacache.host.protocol import HostError, check_peer
from kubeflow_datacache.rows.heap import HEAP

HEADER: Final = "datacache-shared-memory"  # of a call: the token of the memory
_SWITCH: Final = "DATACACHE_SHARED_MEMORY"  # environment variable; off: rows are received by TCP everywhere
_PAIR: Final = struct.Struct("<2I")  # number of slots and bytes of each; number of a slot and length of its message
_NUMBER: Final = struct.Struct("<I")
_PACKET: Final = 1 << 10
_SECONDS: Final = 0.5  # how long to wait for memory before rows are read by TCP
LEAST: Final = 1 << 16  # bytes of a slot
_MORE: Final = 4  # slots beside those for rows that were read ahead
_IDLE: Final = 2  # unused memories kept for each server: one of an epoch's streams, one of requests by row number
CIRCULATING: Final = 2  # slots that the server gets back at once, whatever the rows of this process are kept for


class Slots(NamedTuple):
    """How much memory to ask for: the number of slots, and the bytes of each, a multiple of the page size."""

    number: int
    nbytes: int


class SharedMemory:
    """Memory that a server writes messages to, for one call at a time. For one thread, except close."""

    def __init__(self, port: int, slots: Slots) -> None:
        """Asks the server at a TCP port of this machine. Raises OSError or HostError if it shares no memory with this
        process."""
        self.asked = port, slots
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._finalize = weakref.finalize(self, self._socket.close)
        self._socket.settimeout(_SECONDS)
        self._socket.connect(f"\0datacache-{port}")
        check_peer(self._socket)
        self._socket.send(_PAIR.pack(*slots))
        packet, received, _, _ = socket.recv_fds(self._socket, _PACKET, 1)
        self._socket.settimeout(None)
        if not received:
            raise HostError("the server has no memory to share")
        self._count, self._nbytes = _NUMBER.unpack_from(packet)[0], slots.nbytes
        self.token = packet[_NUMBER.size :].decode()
        try:
            self._mapped = _map(received[0], self._count * self._nbytes)
        finally:
            os.close(received[0])
        self._all = np.frombuffer(self._mapped, np.uint8)
        self._address: int = self._all.ctypes.data
        self._held: set[int] = set()  # slots that Arrow buffers refer to
        self._kept: set[int] = set()  # slots that a forked child may refer to, which are not given back
        self._returned: deque[int] = deque()  # slots to which no buffer refers any more
        _MEMORIES.add(self)

    def message(self, place: bytes) -> pa.Buffer:
        """The message at a place in the memory. It is copied to other memory if buffers refer to nearly all slots."""
        slot, nbytes = _PAIR.unpack(place)
        if slot >= self._count or nbytes > self._nbytes:
            raise ProtocolError(
                f"a message of {nbytes} bytes in slot {slot} of {self._count} with {self._nbytes} bytes"
            )
        first = slot * self._nbytes
        if len(self._held) < self._count - CIRCULATING:
            self._held.add(slot)
            return pa.foreign_buffer(self._address + first, nbytes, _Lease(self, self._returned, slot))
        copied, memory = HEAP.allocate(nbytes)
        np.copyto(np.frombuffer(memory, np.uint8), self._all[first : first + nbytes])  # does not hold the GIL
        self._returned.append(slot)
        return copied

    def give_back(self) -> None:
        """Gives the server the slots back to which no buffer refers any more."""
        numbers: list[int] = []
        while self._returned:
            slot = self._returned.popleft()
            if slot not in self._kept:
                self._held.discard(slot)
                numbers.append(slot)
        if numbers:
            with contextlib.suppress(OSError):  # a server that stops sends the rest by TCP
                self._socket.send(struct.pack(f"<{len(numbers)}I", *numbers))

    @property
    def alive(self) -> bool:
        """Whether the server still shares it."""
        try:
            self._socket.recv(1, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def close(self) -> None:
        """Ends the connection; the server writes to the memory no more. Buffers stay as they are."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._finalize()

    def keep(self) -> None:
        """Before a fork: a child's batches must not change when this process lets go of them."""
        self._kept |= self._held

    def leave_parent(self) -> None:
        """In a forked child: closes its copy of the connection, which would otherwise outlive the parent's."""
        self._finalize()


class _Lease:
    """Returns a slot when the buffer that refers to it is destroyed."""

    __slots__ = ("_memory", "_returned", "_slot")

    def __init__(self, memory: SharedMemory, returned: deque[int], slot: int) -> None:
        self._memory, self._returned, self._slot = memory, returned, slot

    def __del__(self) -> None:
        self._returned.append(self._slot)


class Shared:
    """The memories that the calls of one client share with servers. A call whose answer was whole leaves its memory to
    the next one, since new pages cost more than what is written to them. Safe for concurrent use."""

    def __init__(self) -> None:
        self._idle: dict[tuple[int, Slots], SharedMemory] = {}
        self._process = os.getpid()

    def wanted(self, message_bytes: int, ahead_bytes: int) -> Wanted:
        """Slots for messages of about message_bytes, of which a reader keeps ahead_bytes and passes half as many on."""
        nbytes = max(LEAST, -(-message_bytes * 9 // 8 // mmap.PAGESIZE) * mmap.PAGESIZE)
        return Wanted(self, Slots(_MORE + ahead_bytes * 3 // 2 // nbytes, nbytes))

    def take(self, connection: socket.socket, slots: Slots) -> SharedMemory | None:
        """Memory of the server of a TCP connection, if it is of this machine and user, and shares some."""
        if sys.platform != "linux" or os.environ.get(_SWITCH) == "off":
            return None
        host, port, *_ = connection.getpeername()
        if host != connection.getsockname()[0]:
            return None
        if self._process != os.getpid():
            self._idle, self._process = {}, os.getpid()  # those of the parent
        idle = self._idle.pop((port, slots), None)
        if idle is not None and idle.alive:
            return idle
        try:
            return SharedMemory(port, slots)
        except (OSError, HostError):
            return None

    def leave(self, memory: SharedMemory) -> None:
        """Keeps an unused memory for later calls. Of more than _IDLE memories of a server, the oldest is closed."""
        if self._idle.setdefault(memory.asked, memory) is not memory:
            memory.close()
        port, _ = memory.asked
        for asked in [each for each in list(self._idle) if each[0] == port][:-_IDLE]:
            if oldest := self._idle.pop(asked, None):
                oldest.close()

    def close(self) -> None:
        """Ends the connections of memories that no call uses."""
        while self._idle:
            self._idle.popitem()[1].close()


class Wanted(NamedTuple):
    """What memory a call wants, and where it comes from."""

    source: Shared
    slots: Slots


def _map(memory: int, size: int) -> mmap.mmap:
    """Maps memory, of which it checks that nobody can shrink it."""
    if not fcntl.fcntl(memory, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK or os.fstat(memory).st_size != size:
        raise HostError("the server's memory is not sealed")
    return mmap.mmap(memory, size)


def _keep() -> None:
    for memory in list(_MEMORIES):
        memory.keep()


def _leave_parent() -> None:
    for memory in list(_MEMORIES):
        memory.leave_parent()


_MEMORIES: Final[weakref.WeakSet[SharedMemory]] = weakref.WeakSet()
os.register_at_fork(before=_keep, after_in_parent=_keep, after_in_child=_leave_parent)
