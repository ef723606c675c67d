# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""FSDP2 with tensor parallelism: ranks with parts of one model read the same rows; the groups divide the rows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kit.deadline import limit
from small import served, small_table, steps_of

from ranks import rank_environment

pytest.importorskip("torch")

ROWS = 41
OPTIONS: dict[str, Any] = {"global_batch_size": 10, "seed": 3, "tail": "drop"}

# One of four ranks: trains its part of a model, and prints the rows it read.
RANK = """
import json, sys
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from kubeflow_datacache import DataCache, World
from kubeflow_datacache.torch import StreamingDataLoader, StreamingDataset

endpoint, options, rank, meeting = json.loads(sys.argv[1])
dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=4)
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Linear(4, 1))
parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
fully_shard(model, mesh=mesh["data"])
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
with DataCache(endpoint, retry_seconds=600) as cache:
    loader = StreamingDataLoader(StreamingDataset(cache, **options, world=World.of_mesh(mesh, "data"), host="require"))
    steps = []
    for batch in loader:
        model(batch["id"].float().unsqueeze(1)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        steps.append(batch["id"].tolist())
assert World.of_mesh(mesh, "data").replicas == 2
assert loader.stats().shared == len(steps)
group = World.of_group(mesh["data"].get_group())
assert World.of_mesh(mesh, "data") == group, group
assert World.of_mesh(mesh, "data", "tensor") == World(rank, 4)
print(json.dumps([mesh["data"].get_local_rank(), steps]))
dist.destroy_process_group()
"""


def test_tensor_parallel_ranks_read_the_same_rows(server: Path, tmp_path: Path) -> None:
    with served(server, tmp_path, small_table(tmp_path, ROWS)) as endpoint:
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", RANK, json.dumps([endpoint, OPTIONS, rank, f"file://{tmp_path / 'meeting'}"])],
                stdout=subprocess.PIPE,
                env={**rank_environment(), "LOCAL_WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": str(tmp_path)},
                text=True,
            )
            for rank in range(4)
        ]
        output = [rank.communicate(timeout=3 * limit())[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * 4
    read = [json.loads(out.splitlines()[-1]) for out in output]
    for place, steps in read:
        assert steps == steps_of(OPTIONS, 0, place, 2, rows=ROWS)
    assert sorted(place for place, _ in read) == [0, 0, 1, 1]
