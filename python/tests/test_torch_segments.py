# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Shared-memory segments between DataLoader workers and the main process are reused, but never while in use."""

from __future__ import annotations

import os
import pickle
import secrets
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler

import pyarrow as pa
import pytest

pytest.importorskip("torch")

from kubeflow_datacache.torch.segments import ReceivedSegment, SegmentPool, SegmentRef, drop_segments

ROWS = pa.record_batch({"id": pa.array(range(1000)), "name": pa.array([f"row {i}" for i in range(1000)])})


@pytest.fixture
def reader() -> Iterator[str]:
    name = secrets.token_hex(8)
    yield name
    drop_segments(name)


def receive(sent: SegmentRef) -> list[pa.RecordBatch]:
    return ReceivedSegment(pickle.loads(ForkingPickler.dumps(sent))).read()


def test_rows_arrive_and_their_memory_is_used_again(reader: str) -> None:
    pool = SegmentPool(reader, 0, 4096)
    for turn in range(10):
        sent = pool.write([ROWS.slice(turn), ROWS.slice(0, turn), ROWS.slice(0, 0)])
        assert (sent.number, sent.memory is None) == (0, turn > 0)
        assert receive(sent) == [ROWS.slice(turn), ROWS.slice(0, turn), ROWS.slice(0, 0)]


def test_referenced_memory_is_not_overwritten(reader: str) -> None:
    pool = SegmentPool(reader, 0, 4096)
    (kept,) = receive(pool.write([ROWS]))
    column = kept["id"].to_numpy()
    del kept
    unread = pool.write([ROWS.slice(500)])
    assert unread.number == 1
    assert pool.write([ROWS.slice(0, 500)]).number == 2, "the first is kept, the second not read yet"
    assert column.tolist() == list(range(1000))
    assert receive(unread) == [ROWS.slice(500)]
    del column
    assert pool.write([ROWS]).number == 0


def test_larger_rows_get_a_segment_of_their_own(reader: str) -> None:
    pool = SegmentPool(reader, 0, 64)
    receive(pool.write([ROWS.slice(0, 10)]))
    (whole,) = receive(large := pool.write([ROWS]))
    assert (large.number, whole) == (1, ROWS)


def test_another_iteration_of_a_worker_has_segments_of_its_own(reader: str) -> None:
    (before,) = receive(SegmentPool(reader, 0, 4096).write([ROWS]))
    (other,) = receive(SegmentPool(reader, 1, 4096).write([ROWS.slice(1)]))
    (after,) = receive(SegmentPool(reader, 0, 4096).write([ROWS.slice(2)]))
    assert (before, other, after) == (ROWS, ROWS.slice(1), ROWS.slice(2))


def test_a_forked_child_frees_nothing_of_its_parent(reader: str) -> None:
    pool = SegmentPool(reader, 0, 4096)
    rows = receive(pool.write([ROWS]))
    child = os.fork()
    if not child:
        rows.clear()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert pool.write([ROWS]).number == 1
    assert rows == [ROWS]
