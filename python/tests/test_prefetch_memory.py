# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Memory stays within prefetch_bytes, whatever a transform does with the rows."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from cluster import Cluster
from kit.deadline import eventually, limit

from kubeflow_datacache import DataCache, World
from kubeflow_datacache.fetch.queue import ByteQueue, QueueEntry
from kubeflow_datacache.rows.batch import held_bytes
from kubeflow_datacache.rows.size import memory_of

MIB = 1 << 20
ALONE = World(0, 1)

# Runs in a separate process: memory of earlier imports and tests would count.
GROWS = """
import json, sys, threading
import numpy as np
import pyarrow as pa
from kubeflow_datacache import DataCache, World

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

made = threading.Semaphore(0)

def grow(rows):
    out = np.full(30 * rows.nbytes, 1, np.uint8)
    made.release()
    return [out]

endpoint, prefetch = sys.argv[1], int(sys.argv[2])
with DataCache(endpoint) as cache:
    cache.dataset
    baseline = resident()
    loader = cache.loader(
        global_batch_size=32, transform=grow, transform_threads=4, prefetch_bytes=prefetch, world=World(0, 1)
    )
    most, batches = 0, iter(loader)
    for _ in range(60):
        next(batches)
        while made.acquire(timeout=0.1):  # until no more batches are prefetched
            pass
        most = max(most, resident())
print(json.dumps({"baseline": baseline, "most": most, "step": loader.stats().next_step}))
"""


def test_resident_memory_with_a_transform_that_makes_thirty_times_as_much(cluster: Cluster) -> None:
    prefetch = 64 * MIB
    run = subprocess.run(
        [sys.executable, "-c", GROWS, cluster.endpoint, str(prefetch)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "MALLOC_MMAP_THRESHOLD_": str(1 << 18),  # returns freed memory to the system, where malloc would keep some
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=limit(),
    )
    assert run.returncode == 0, run.stderr
    told = json.loads(run.stdout)
    print({name: value // MIB for name, value in told.items()}, "MiB")
    assert told["step"] == 60
    assert told["most"] <= 1.25 * (prefetch + told["baseline"])


def test_batches_that_a_transform_made_count(cache: DataCache) -> None:
    made = list[int]()

    def grow(rows: pa.RecordBatch) -> list[Any]:
        made.append(rows.num_rows)
        return [np.zeros(MIB, np.uint8)]

    loader = cache.loader(
        global_batch_size=1, transform=grow, transform_threads=0, prefetch_bytes=20 * MIB, world=ALONE
    )
    batches = iter(loader)
    assert held_bytes(next(batches)) > MIB
    eventually("a quarter of it, for results", lambda: loader.stats().prefetch_queue_depth.bytes >= 4 * MIB)
    loader.close()
    assert len(made) <= 8, "of a hundred"


def test_a_batch_lets_go_of_the_rows_that_were_transformed(cache: DataCache) -> None:
    before = pa.total_allocated_bytes()
    loader = cache.loader(global_batch_size=100, transform=lambda rows: {"n": np.zeros(rows.num_rows)}, world=ALONE)
    (batch,) = loader
    came = batch.nbytes
    loader.close()
    assert came > 1000
    assert pa.total_allocated_bytes() - before < came


def test_an_item_may_grow_in_the_queue() -> None:
    queue = ByteQueue[str](10)
    first = QueueEntry(1, 2)
    assert queue.put("first", first)
    queue.resize(first, 9)
    assert queue.depth() == (1, 9)
    put = threading.Thread(target=lambda: queue.put("second", QueueEntry(1, 2)))
    put.start()
    assert queue.get() == "first"
    put.join(limit())
    queue.resize(first, 100)  # no longer in the queue
    assert queue.depth() == (1, 2)


@dataclasses.dataclass
class Sample:
    """An object of a user-defined class."""

    pixels: Any


@pytest.mark.parametrize(
    "make",
    [
        lambda pixels: pixels,
        lambda pixels: {"a": pixels},
        lambda pixels: [pixels[: MIB // 2], pixels[MIB // 2 :]],
        lambda pixels: [Sample(pixels[i * 1024 :][:1024]) for i in range(1024)],
        lambda pixels: pa.record_batch({"a": pixels}),
        lambda pixels: pa.table({"a": pixels}),
        lambda pixels: pixels.tobytes(),
        lambda pixels: ({"x": {"y": [pixels]}},),
    ],
)
def test_memory_of_values(make: Callable[[Any], Any]) -> None:
    assert memory_of(make(np.zeros(MIB, np.uint8))) == pytest.approx(MIB, rel=0.2)


def test_a_slice_holds_its_own_rows() -> None:
    assert memory_of(pa.record_batch({"a": np.zeros(MIB)}).slice(5, 100)) < 1000
