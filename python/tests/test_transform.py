# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Transforms in threads and processes keep the order, and errors name the step."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
from typing import Any

import pyarrow as pa
import pytest
import transforms
from kit.deadline import limit, pause
from peer import rows_of

from kubeflow_datacache import DataCache, DataCacheError, TransformError, World
from kubeflow_datacache import processes as child
from kubeflow_datacache.transform import Transform

ALONE = World(0, 1)
POOLS: list[dict[str, Any]] = [{"transform_threads": n} for n in (0, 1, 3)] + [{"transform_processes": 2}]


@pytest.mark.parametrize("pool", POOLS)
def test_a_transform_that_raises(cache: DataCache, pool: dict[str, Any]) -> None:
    loader = cache.loader(global_batch_size=20, shuffle=False, transform=transforms.fails_on_42, world=ALONE, **pool)
    batches = iter(loader)
    assert [next(batches).step, next(batches).step] == [0, 1], "batches before it come first"
    with pytest.raises(TransformError) as error:
        next(batches)
    assert str(error.value) == (
        "transform transforms.fails_on_42 raised ZeroDivisionError: forty-two; at epoch 0, step 2, on rows"
        " [40, 41, 42, 43, 44, 45, 46, 47, ...] (20 rows)"
    )
    assert isinstance(error.value.__cause__, ZeroDivisionError)
    assert loader.state_dict()["next_step"] == 2
    loader.close()


@pytest.mark.parametrize("threads", [0, 1, 4, None])
def test_transforms_keep_the_order(cache: DataCache, threads: int | None) -> None:
    def slow_at_first(rows: pa.RecordBatch) -> dict[str, Any]:
        pause(0.01 if rows.column("id")[0].as_py() < 30 else 0)
        return {"first": rows.column("id")[0].as_py()}

    loader = cache.loader(
        global_batch_size=3, shuffle=False, transform=slow_at_first, transform_threads=threads, world=ALONE
    )
    assert [batch.data["first"] for batch in loader] == list(range(0, 99, 3))


def test_processes_keep_the_order_and_stay_for_the_next_epoch(cache: DataCache) -> None:
    loader = cache.loader(
        global_batch_size=3, shuffle=False, transform=transforms.first_id, transform_processes=2, world=ALONE
    )
    seen: list[set[int]] = []
    for _ in range(2):
        data = [batch.data for batch in loader]
        assert [one["first"] for one in data] == list(range(0, 99, 3))
        seen.append({one["process"] for one in data})
    assert os.getpid() not in seen[0] | seen[1]
    assert len(seen[0] | seen[1]) <= 2, "the second epoch has the processes of the first"
    loader.close()
    assert next(iter(loader)).data["first"] == 0, "a closed loader may be used again"
    loader.close()


@pytest.mark.parametrize("pool", [{"transform_threads": 1}, {"transform_processes": 1}])
def test_a_transform_may_give_arrow(cache: DataCache, pool: dict[str, Any]) -> None:
    with cache:
        loader = cache.loader(
            global_batch_size=30, shuffle=False, transform=transforms.only_id, tail="keep", world=ALONE, **pool
        )
        batches = list(loader)
    assert [list(batch.numpy()) for batch in batches] == [["id"]] * 4
    assert [row for batch in batches for row in batch.numpy()["id"].tolist()] == list(range(100))


def test_a_transform_that_gives_nothing(cache: DataCache) -> None:
    def forgets(rows: pa.RecordBatch) -> None:
        del rows

    loader = cache.loader(global_batch_size=50, shuffle=False, transform=forgets, world=ALONE)
    with pytest.raises(TransformError, match=r"forgets returned None at epoch 0, step 0, on rows .*: want a record"):
        list(loader)


def test_an_error_that_can_not_be_sent_between_processes(cache: DataCache) -> None:
    loader = cache.loader(
        global_batch_size=50, shuffle=False, transform=transforms.fails_oddly, transform_processes=1, world=ALONE
    )
    with pytest.raises(TransformError, match=r"fails_oddly raised RuntimeError: OddError: row 0: odd; at epoch 0"):
        list(loader)
    loader.close()


def test_a_worker_process_that_dies(cache: DataCache) -> None:
    loader = cache.loader(
        global_batch_size=50, transform=transforms.ends_its_process, transform_processes=1, world=ALONE
    )
    for _ in range(2):
        with pytest.raises(TransformError, match=r"lost one of its processes: .* memory .*; at epoch 0, step 0"):
            list(loader)
    loader.close()


def test_cancelled_batches_raise_at_once(cache: DataCache) -> None:
    first, second = list(cache.loader(global_batch_size=50, world=ALONE))
    begun, free = threading.Event(), threading.Event()

    def held(rows: pa.RecordBatch) -> pa.RecordBatch:
        begun.set()
        assert free.wait(limit())
        return rows

    transform = Transform(held, threads=1)
    running, waiting = transform.start(first), transform.start(second)
    assert begun.wait(limit())
    transform.cancel()
    with pytest.raises(DataCacheError, match="the loader was closed before it applied the transform"):
        waiting.result(limit())
    free.set()
    assert running.result(limit()) is first
    transform.close()


def test_daemonic_processes_start_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)  # type: ignore[attr-defined]
    with pytest.raises(TransformError, match=r"transform_processes = 2 in a daemonic process.*use transform_threads"):
        child.pool(2, b"")


ORPHAN = """
import sys
import pyarrow as pa
import transforms
from kubeflow_datacache import processes

pool = processes.pool(1, processes.pack_function(transforms.only_id, "only_id"))
sent = processes.pack(pa.record_batch({"id": [1, 2]}))
print(processes.unpack(pool.submit(processes.apply, sent).result()).num_rows, flush=True)
sys.stdin.read()
"""


def test_processes_end_with_a_parent_that_is_killed() -> None:
    path = os.pathsep.join(path for path in sys.path if path)
    parent = subprocess.Popen(
        [sys.executable, "-c", ORPHAN],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"2\n"
    parent.kill()
    parent.communicate(timeout=120)  # the output ends when the last process that writes to it has ended


def test_rows_are_sent_without_their_neighbours() -> None:
    rows = rows_of(list(range(10_000)))
    sent = child.pack(rows.slice(5_000, 3))
    assert sent.stream.size < 4_000 < rows.nbytes
    assert child.unpack(sent) == rows.slice(5_000, 3)
    assert child.unpack({"any": "thing"}) == {"any": "thing"}
