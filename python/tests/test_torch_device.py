# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Batches on a device, and batches broadcast by one rank."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from kit.deadline import limit
from small import ROWS, served, small_table, steps_of

from kubeflow_datacache import DataCache, World
from ranks import rank_environment

pytest.importorskip("torch")
import torch

from kubeflow_datacache.torch import Pad, StreamingDataLoader, StreamingDataset, TensorBatch
from kubeflow_datacache.torch.device import to_device

ALONE = World(0, 1)
OPTIONS: dict[str, Any] = {"global_batch_size": 24, "seed": 5, "shuffle": True, "clump": 1, "tail": "keep"}


class Pair(NamedTuple):
    """A possible result of collate_fn."""

    x: torch.Tensor
    name: str


def test_tensors_are_copied_to_the_device() -> None:
    there = to_device([{"x": torch.ones(2), "n": 3}, Pair(torch.ones(1), "a"), (torch.ones(1),)], torch.device("meta"))
    assert there[0]["x"].device.type == there[1].x.device.type == there[2][0].device.type == "meta"
    assert (there[0]["n"], there[1].name, type(there[1]), type(there[2])) == (3, "a", Pair, tuple)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_gives_batches_on_a_device(cache: DataCache, workers: int) -> None:
    def epoch(**options: Any) -> list[TensorBatch]:
        dataset = StreamingDataset(cache, global_batch_size=10, world=ALONE, tail="pad")
        return list(StreamingDataLoader(dataset, **options))

    plain = epoch()
    there = epoch(num_workers=workers, device="meta")
    assert [type(batch) for batch in there] == [TensorBatch] * 10
    assert [(batch.step, batch.num_rows) for batch in there] == [(batch.step, batch.num_rows) for batch in plain]
    assert all(batch["id"].device.type == "meta" and isinstance(batch["name"], pa.Array) for batch in there)
    here = epoch(num_workers=workers, device="cpu")
    assert [batch["id"].tolist() for batch in here] == [batch["id"].tolist() for batch in plain]


def test_steps_under_way_to_a_device_are_not_given_out(cache: DataCache) -> None:
    moving = list[int]()

    def seen(batch: TensorBatch) -> TensorBatch:
        assert batch.step is not None
        moving.append(batch.step)
        return batch

    dataset = StreamingDataset(cache, global_batch_size=10, shuffle=False, world=ALONE)
    loader = StreamingDataLoader(dataset, num_workers=1, device="cpu", collate_fn=seen, bundle_bytes=1 << 30)
    batches = iter(loader)
    given = [next(batches).step for _ in range(3)]
    state = loader.state_dict()
    assert state["next_step"] == len(given) == 3
    other = StreamingDataset(cache, global_batch_size=10, shuffle=False, world=ALONE)
    again = StreamingDataLoader(other, device="cpu")
    again.load_state_dict(state)
    assert [batch.step for batch in again] == [3, 4, 5, 6, 7, 8, 9]
    assert [batch.step for batch in batches] == [3, 4, 5, 6, 7, 8, 9]
    assert moving == list(range(10)), "each once, in order"


def test_a_transform_s_tensors_are_moved(cache: DataCache) -> None:
    dataset = StreamingDataset(cache, global_batch_size=10, transform=Pad({"vector": 0}), world=ALONE)
    first = next(iter(StreamingDataLoader(dataset, device="meta")))
    assert first["vector"].device.type == first["vector_mask"].device.type == "meta"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here: make bench NAME=gpu where there is one")
def test_copies_beside_kernels(cache: DataCache) -> None:
    def epoch(**options: Any) -> list[float]:
        dataset = StreamingDataset(cache, global_batch_size=10, world=ALONE)
        return [batch["id"].sum().item() for batch in StreamingDataLoader(dataset, **options)]

    assert epoch(num_workers=1, pin_memory=True, device="cuda") == epoch()


def test_the_bench_says_that_there_is_no_gpu() -> None:
    root = Path(__file__).parents[2]
    folders = [root / "python/src", root / "test/conformance", root / "hack"]
    own = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders)), "CUDA_VISIBLE_DEVICES": ""}
    bench = [sys.executable, str(root / "test/bench/gpu.py")]
    run = subprocess.run(bench, env=own, capture_output=True, text=True, check=False, timeout=3 * limit())
    assert run.returncode == 1
    assert "THERE IS NO GPU HERE, nothing was measured" in run.stderr


# One of two ranks with parts of one model: the first reads, both get every batch.
RANK = """
import json, sys
import torch.distributed as dist
from kubeflow_datacache import DataCache, World
from kubeflow_datacache.torch import StreamingDataLoader, StreamingDataset, broadcast

endpoint, options, rank, meeting = json.loads(sys.argv[1])
dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)

def steps(transform=None):
    if rank:
        yield from broadcast(None)
        return
    with DataCache(endpoint, retry_seconds=600) as cache:
        dataset = StreamingDataset(cache, **options, transform=transform, world=World(0, 1))
        yield from broadcast(StreamingDataLoader(dataset))

def fails(rows):
    raise RuntimeError("no such luck")

out = {"steps": [[batch.step, batch["id"].tolist(), batch["text"].to_pylist()] for batch in steps()], "failed": ""}
try:
    list(steps(fails))
except Exception as error:
    out["failed"] = str(error)
try:
    next(broadcast([] if rank else None))
except ValueError as error:
    out["wrong"] = str(error)
print(json.dumps(out))
dist.destroy_process_group()
"""


def test_one_rank_reads_for_both(server: Path, tmp_path: Path) -> None:
    with served(server, tmp_path, small_table(tmp_path, ROWS)) as endpoint:
        orders = [json.dumps([endpoint, OPTIONS, rank, f"file://{tmp_path / 'meeting'}"]) for rank in range(2)]
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", RANK, order], stdout=subprocess.PIPE, env=rank_environment(), text=True
            )
            for order in orders
        ]
        outputs = [rank.communicate(timeout=3 * limit())[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    first, second = (json.loads(output.splitlines()[-1]) for output in outputs)
    assert first["steps"] == second["steps"]
    assert [ids for _, ids, _ in second["steps"]] == steps_of(OPTIONS, 0)
    assert all(text == [f"text of row {i}" for i in ids] for _, ids, text in second["steps"])
    for one in (first, second):
        assert "no such luck" in one["failed"]
        assert one["wrong"] == "batches: want them in rank 0, the group's first, and None in the others"
