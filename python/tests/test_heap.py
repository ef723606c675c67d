# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The heap reuses memory, and never allocates a range twice at the same time."""

from __future__ import annotations

import gc
import random
import subprocess
import sys
import threading

import numpy as np
import pyarrow as pa

from kubeflow_datacache.rows.heap import Heap

MIB = 1 << 20


def take(heap: Heap, nbytes: int, value: int) -> pa.Buffer:
    """Allocates a buffer and fills it with a value."""
    buffer, memory = heap.allocate(nbytes)
    np.frombuffer(memory, np.uint8)[:] = value
    return buffer


def holds(buffer: pa.Buffer, nbytes: int, value: int) -> bool:
    """Whether a buffer has this length and this value in every byte."""
    found = np.frombuffer(buffer, np.uint8)
    return len(found) == nbytes and bool((found == value).all())


def test_allocated_memory_is_exclusive(rng: random.Random) -> None:
    heap, held = Heap(), list[tuple[pa.Buffer, int, int]]()
    for turn in range(400):
        while len(held) > 30 or (held and rng.random() < 0.4):
            buffer, nbytes, value = held.pop(rng.randrange(len(held)))
            assert holds(buffer, nbytes, value)
        nbytes, value = rng.choice([0, 1, 5_000, 70_000, MIB, 3 * MIB + 17, 40 * MIB]), turn % 256
        held.append((take(heap, nbytes, value), nbytes, value))
    assert all(holds(*one) for one in held)


def test_references_keep_memory_allocated() -> None:
    heap = Heap()
    column = pa.Array.from_buffers(pa.uint8(), MIB, [None, take(heap, MIB, 7)])
    part = column.slice(5, 10).to_numpy()
    del column
    others = [take(heap, MIB, 9) for _ in range(40)]
    assert part.tolist() == [7] * 10
    del others, part
    gc.collect()
    assert heap.allocate(40 * MIB)[0].size == 40 * MIB


def test_freed_memory_is_used_again() -> None:
    heap = Heap()
    held = [take(heap, 6 * MIB, 1), take(heap, 6 * MIB, 2)]
    places = {buffer.address for buffer in held}
    for value in range(50):
        del held[0]
        held.append(take(heap, 6 * MIB, value))
        assert held[1].address in places


def test_neighbours_that_are_free_become_one() -> None:
    heap = Heap()
    heap.keep(64 * MIB)
    pieces = {i: take(heap, 4 * MIB, i) for i in range(8)}  # a whole arena
    first = pieces[0].address
    for i in (1, 5, 3, 2, 4, 0, 7, 6):
        del pieces[i]
    assert take(heap, 32 * MIB, 1).address == first
    assert heap.nbytes == 32 * MIB


def test_kept_memory_is_bounded() -> None:
    heap = Heap()
    heap.keep(64 * MIB)
    heap.keep(MIB)
    held = [take(heap, 30 * MIB, i) for i in range(5)]
    assert heap.nbytes == 160 * MIB
    del held[1:]
    held.append(take(heap, 30 * MIB, 9))
    assert heap.nbytes == 96 * MIB, "what is held, and 64 MiB"
    assert holds(held[0], 30 * MIB, 0)


def test_threads_share_a_heap() -> None:
    heap, wrong = Heap(), list[int]()

    def work(value: int) -> None:
        held: list[pa.Buffer] = []
        for _ in range(100):
            held = [*held[-3:], take(heap, 300_000, value)]
            if not all(holds(buffer, 300_000, value) for buffer in held):
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(value,)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert heap.nbytes == 32 * MIB


# Runs in a separate process: forks of pytest's process would inherit locks held by its threads.
FORKED = """
import os
import numpy as np
from kubeflow_datacache.rows.heap import HEAP

def take(value):
    buffer, memory = HEAP.allocate(1 << 20)
    np.frombuffer(memory, np.uint8)[:] = value
    return buffer

before = take(1)
HEAP._lock.acquire()
child = os.fork()
if child == 0:
    after = [take(2) for _ in range(40)]
    os._exit(0 if bytes(before) == b"\\1" * (1 << 20) else 1)
HEAP._lock.release()
mine = [take(3) for _ in range(40)]
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert bytes(before) == b"\\1" * (1 << 20)
assert all(bytes(buffer) == b"\\3" * (1 << 20) for buffer in mine)
"""


def test_forked_processes_have_a_heap_each() -> None:
    run = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, check=False, timeout=300)
    assert run.returncode == 0, run.stderr
