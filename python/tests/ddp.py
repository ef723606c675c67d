# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""One rank of a distributed training with gloo: trains a tiny model, and prints the rows it read and the weights as
JSON."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from kit.deadline import limit
from torch.nn.parallel import DistributedDataParallel

from kubeflow_datacache import DataCache
from kubeflow_datacache.torch import StreamingDataLoader, StreamingDataset
from ranks import rank_environment


@dataclass(frozen=True, kw_only=True)
class Run:
    """A training: the loader's options and the number of workers."""

    options: dict[str, Any]
    workers: int = 0
    epochs: int = 1


@dataclass
class Trained:
    """The result of a training on one rank: the ids of each step's rows without padding, and the final weights."""

    steps: list[list[int]]
    weights: list[float]


def train(endpoint: str, runs: Sequence[Run], world: int, folder: Path) -> list[list[Trained]]:
    """Runs the trainings with `world` processes; returns results by [rank][run]."""
    meeting = f"file://{folder / f'meeting-{world}'}"
    orders = [
        {"endpoint": endpoint, "runs": [asdict(run) for run in runs], "rank": rank, "world": world, "at": meeting}
        for rank in range(world)
    ]
    ranks = [
        subprocess.Popen([sys.executable, __file__, json.dumps(order)], stdout=subprocess.PIPE, env=rank_environment())
        for order in orders
    ]
    try:
        output = [rank.communicate(timeout=3 * limit())[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * world, "see the captured standard error"
    return [[Trained(**result) for result in json.loads(text.splitlines()[-1])] for text in output]


def learn(cache: DataCache, run: Run) -> Trained:
    """Runs one training on this rank."""
    torch.manual_seed(1)
    model = DistributedDataParallel(torch.nn.Linear(2, 1, dtype=torch.float64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    # Forked workers start fast. This is allowed as long as this rank itself has not connected to the cache.
    dataset = StreamingDataset(cache, **run.options)
    loader = StreamingDataLoader(
        dataset, num_workers=run.workers, multiprocessing_context="fork" if run.workers else None
    )
    steps: list[list[int]] = []
    for epoch in range(run.epochs):
        loader.set_epoch(epoch)
        for batch in loader:
            counts = batch.valid.to(torch.float64)
            rows = batch["id"].to(torch.float64) / 100
            wrong = model(torch.stack([rows, rows**2], 1))[:, 0] - torch.sin(rows)
            # DDP averages over ranks, but their shares are uneven: divide by the row count of the whole step.
            whole = counts.sum()
            dist.all_reduce(whole)
            loss = (wrong**2 * counts).sum() * dist.get_world_size() / whole
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps.append(batch["id"][batch.valid].tolist())
    return Trained(steps, [value for part in model.parameters() for value in part.detach().flatten().tolist()])


def main() -> None:
    """Joins the process group, runs the trainings, prints the results."""
    order = json.loads(sys.argv[1])
    dist.init_process_group(
        "gloo",
        init_method=order["at"],
        rank=order["rank"],
        world_size=order["world"],
        timeout=dt.timedelta(seconds=3 * limit()),
    )
    runs = [Run(**run) for run in order["runs"]]
    cache = DataCache(order["endpoint"], retry_seconds=limit())
    print(json.dumps([asdict(learn(cache, run)) for run in runs]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
