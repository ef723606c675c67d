# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Link: a rank's connection with the reader of its host, which the first rank starts."""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from kubeflow_datacache.host import protocol
from kubeflow_datacache.host.protocol import Block, HostError, LeftError, Request, Start
from kubeflow_datacache.rows.arrays import Policy
from kubeflow_datacache.rows.block import StepBlock
from kubeflow_datacache.rows.gather import detach_small
from kubeflow_datacache.rows.heap import HEAP
from kubeflow_datacache.rows.widen import as_marked

_STARTS: Final = 3  # attempts to start a reader
_LOOK_SECONDS: Final = 0.02  # between attempts to connect
_ASK_SECONDS: Final = 0.5  # a rank that waits asks this often what the reader waits for
_SILENT_SECONDS: Final = 5.0  # a rank reads alone after the reader has sent nothing for this long
_LAG_SECONDS: Final = 5.0  # how long a training loop waits for other ranks to take their blocks
_BACKLOG: Final = 1024


class Link:
    """A connection with the reader at an abstract Unix address. Release it; close() is safe from any thread."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._memory: dict[int, mmap.mmap] = {}
        self._closed = False
        _LINKS.add(self)

    def join(self, request: Request, start: Start, part: int, seconds: float) -> None:
        """Connects, starts a reader of the request if there is none, and joins a stream for a part of its rows. Raises
        HostError if that takes longer than some seconds."""
        deadline, starts = time.monotonic() + seconds, 0
        while not self._closed:
            try:
                self._socket.connect(self._address)
                protocol.check_peer(self._socket)
                self._socket.send(protocol.JOIN.pack(*start, part))
                self._socket.settimeout(max(_LOOK_SECONDS, deadline - time.monotonic()))
                packet = self._socket.recv(protocol.MOST_BYTES)
            except TimeoutError:
                raise HostError(f"the reader of this host did not start within {seconds:g} s") from None
            except ConnectionRefusedError:  # there is no reader
                starts += _start(self._address, request)
                packet = b""
            except OSError:  # the reader has just ended
                packet = b""
            if packet == protocol.JOINED:
                return
            if packet.startswith(protocol.FAILED):
                raise HostError(f"the reader of this host failed: {_text(packet)}")
            if starts > _STARTS or time.monotonic() > deadline:
                raise HostError("the reader of this host does not start; standard error may have the reason")
            time.sleep(_LOOK_SECONDS)
            self._socket.close()
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        raise HostError("closed")

    def blocks(self, policy: Policy, waits: Callable[[], bool]) -> Iterator[tuple[StepBlock, Any]]:
        """Yields the blocks of the stream and their steps of order.packed, or None, copied to memory of this process.
        Raises HostError if the reader fails, or if other ranks do not take blocks while the training loop waits, which
        waits() tells."""
        count = 0
        while True:
            packet = self._receive(waits)
            if packet == protocol.END:
                return
            if packet.startswith(protocol.FAILED):
                raise HostError(f"the reader of this host failed: {_text(packet)}")
            block = Block.unpacked(packet)
            copied = self._copy(block)
            rows = pa.ipc.open_stream(copied).read_next_batch()
            count += 1
            self._send(count)
            rows, steps = detach_small(as_marked(rows)), range(block.first, block.stop, block.stride)
            # of a process of the same user
            planned = pickle.loads(copied.slice(block.nbytes - block.plan)) if block.plan else None
            want = block.rows * len(steps) if planned is None else sum(len(own.rows) for own in planned)
            if rows.num_rows != want:
                raise HostError(f"the reader sent {rows.num_rows} rows for {len(steps)} steps of {want}")
            if planned is None:
                yield StepBlock(steps, block.rows, rows, policy), None
                continue
            for step, own in zip(steps, planned, strict=True):
                yield StepBlock(range(step, step + 1), len(own.rows), rows.slice(0, len(own.rows)), policy), own
                rows = rows.slice(len(own.rows))

    def close(self) -> None:
        """Ends the connection: a blocked read raises HostError."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """Closes the connection and unmaps its memory, in the thread that has read."""
        self.close()
        self._socket.close()
        for mapped in self._memory.values():
            mapped.close()

    def leave_parent(self) -> None:
        """In a forked child: closes its copy of the connection, which would otherwise outlive the parent's."""
        self._socket.close()

    def _copy(self, block: Block) -> pa.Buffer:
        buffer, memory = HEAP.allocate(block.nbytes)
        shared = np.frombuffer(self._memory[block.slot], np.uint8, block.nbytes, block.offset)
        np.copyto(np.frombuffer(memory, np.uint8), shared)  # does not hold the GIL
        return buffer

    def _receive(self, waits: Callable[[], bool]) -> bytes:
        """The next packet that is no answer to ASK."""
        heard = time.monotonic()
        behind: float | None = None  # since when the training loop waits for other ranks
        self._socket.settimeout(_ASK_SECONDS)
        while True:
            try:
                packet, received, _, _ = socket.recv_fds(self._socket, protocol.MOST_BYTES, 1)
            except TimeoutError:
                if time.monotonic() - heard > _SILENT_SECONDS:
                    raise HostError(f"the reader of this host was silent for {_SILENT_SECONDS:g} s") from None
                self._send(protocol.ASK)
                continue
            except OSError as error:
                raise HostError(f"the reader of this host is gone: {error}") from None
            heard = time.monotonic()
            if packet not in (protocol.READS, protocol.FULL):
                return self._accept(packet, received)
            behind = (behind or heard) if packet == protocol.FULL and waits() else None
            if behind is not None and heard - behind > _LAG_SECONDS - _ASK_SECONDS:
                raise LeftError(f"other ranks of this host took no rows for {_LAG_SECONDS:g} s")

    def _accept(self, packet: bytes, received: list[int]) -> bytes:
        """Maps the memory that came with a block."""
        if not packet:
            raise HostError("the reader of this host is gone")
        for memory in received:
            with contextlib.closing(_Descriptor(memory)):
                block = Block.unpacked(packet)
                self._memory[block.slot] = protocol.map_memory(memory, block.capacity)
        return packet

    def _send(self, number: int) -> None:
        try:
            self._socket.send(protocol.NUMBER.pack(number))
        except OSError as error:
            raise HostError(f"the reader of this host is gone: {error}") from None


class _Descriptor:
    """A file descriptor to close."""

    def __init__(self, number: int) -> None:
        self._number = number

    def close(self) -> None:
        """Closes the descriptor."""
        os.close(self._number)


def _start(address: str, request: Request) -> int:
    """Starts a reader unless another process has just begun to; returns how many were started."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        try:
            listener.bind(address)
        except OSError:  # another rank was faster
            return 0
        listener.listen(_BACKLOG)
        with open(os.memfd_create("datacache-request"), "w+b") as stdin:
            stdin.write(pickle.dumps(request))
            stdin.seek(0)
            process = subprocess.Popen(
                [sys.executable, "-m", "kubeflow_datacache.host.reader", str(listener.fileno())],
                stdin=stdin,
                stdout=subprocess.DEVNULL,
                pass_fds=[listener.fileno()],
                start_new_session=True,  # a terminal's Ctrl-C does not reach it
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )
    threading.Thread(target=process.wait, name="datacache-host-wait", daemon=True).start()  # leaves no zombie
    return 1


def _text(packet: bytes) -> str:
    return packet[1:].decode(errors="replace")


def _leave_parent() -> None:
    for link in list(_LINKS):
        link.leave_parent()


_LINKS: Final[weakref.WeakSet[Link]] = weakref.WeakSet()
os.register_at_fork(after_in_child=_leave_parent)
