# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""What ranks and the reader of their host say to each other, in packets of a Unix socket; and who may."""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

# Kinds of packets from the reader: the first byte.
JOINED: Final = b"j"  # to a rank that has joined a stream
BLOCK: Final = b"b"  # a Block, and the descriptor of its memory if the rank has not received that yet
READS: Final = b"r"  # answers ASK: rows are being read from the cache
FULL: Final = b"w"  # answers ASK: published blocks that some rank has not taken use all the memory
END: Final = b"e"  # after the last block of the epoch
FAILED: Final = b"f"  # with the reason as text; the last packet

# Packets from a rank: first JOIN, then NUMBER: how many blocks it has copied, or ASK.
JOIN: Final = struct.Struct("<5Q")  # a Start, and which part of the rows the rank wants
NUMBER: Final = struct.Struct("<q")
ASK: Final = -1

MOST_BYTES: Final = 1 << 12  # size of a packet
_BLOCK: Final = struct.Struct("<9q")
_CREDENTIALS: Final = struct.Struct("3i")  # of SO_PEERCRED: process, user, group
_F_SEAL_FUTURE_WRITE: Final = 0x10  # linux/fcntl.h: no new writable mapping, and no write()
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | _F_SEAL_FUTURE_WRITE | fcntl.F_SEAL_SEAL


class HostError(Exception):
    """Rows cannot be read through the reader of this host. The rank can read them alone."""


class LeftError(HostError):
    """The rank left the reader of this host, and does not try again."""


@dataclass(frozen=True)
class Request:
    """What a reader reads. source: a DataCache, Selection or Mixture. options: of its loader. fingerprint: that of the
    dataset. ranks: how many the reader serves. parts: of how many consecutive ranks of a job it reads the rows, each of
    which as many of the others train on."""

    source: Any
    options: Mapping[str, Any]
    fingerprint: str
    ranks: int
    parts: int


class Start(NamedTuple):
    """Where a stream begins. position, number: of packs, where the window of the step begins, and its number there."""

    epoch: int
    step: int
    position: int
    number: int


class Block(NamedTuple):
    """A rank's rows of the steps range(first, stop, stride), as an Arrow IPC stream in `nbytes` bytes at `offset` of
    memory `slot`, of which the last `plan` are those of the steps, pickled: a list with a step of order.packed each.

    rows: of each step; no meaning where steps depend on lengths. capacity: the size of the memory. plan: 0 where steps
    do not depend on lengths.
    """

    slot: int
    capacity: int
    offset: int
    nbytes: int
    plan: int
    rows: int
    first: int
    stop: int
    stride: int

    def packed(self) -> bytes:
        """The packet."""
        return BLOCK + _BLOCK.pack(*self)

    @classmethod
    def unpacked(cls, packet: bytes) -> Self:
        """The block of a packet."""
        return cls(*_BLOCK.unpack(packet[1:]))


def check_peer(connection: socket.socket) -> None:
    """Raises HostError unless the other end is a process of the same user that this one can see.

    A process of another container has no process ID here, although the two may share a network.
    """
    process, user, _ = _CREDENTIALS.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    if user != os.getuid() or process <= 0:
        raise HostError(f"the other end is process {process} of user {user}, not one of user {os.getuid()} here")


def create_memory(capacity: int) -> tuple[int, mmap.mmap]:
    """Anonymous shared memory that only this mapping can write, and that nobody can shrink. Pages are allocated when
    they are written."""
    memory = os.memfd_create("datacache", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(memory, capacity)
        mapped = mmap.mmap(memory, capacity)
        fcntl.fcntl(memory, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(memory)
        raise
    return memory, mapped


def map_memory(memory: int, capacity: int) -> mmap.mmap:
    """A read-only mapping of memory that create_memory made. Raises HostError for any other."""
    if fcntl.fcntl(memory, fcntl.F_GET_SEALS) & _SEALS != _SEALS or os.fstat(memory).st_size != capacity:
        raise HostError("the reader sent memory that is not sealed")
    return mmap.mmap(memory, capacity, prot=mmap.PROT_READ)
