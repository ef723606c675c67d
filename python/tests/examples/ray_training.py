# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A training with Ray Train on two workers, which fails once and goes on from its last checkpoint.

Each attempt of a worker writes the row ids of every batch as JSON, to <rank>-<attempt>.json.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import ray
import ray.train
import ray.train.torch
import torch

WORKERS, EPOCHS = 2, 2
SAVED, FAILS = 3, 5  # steps before the checkpoint, and before the failure


def train(config: dict[str, Any]) -> None:
    """What each worker runs."""
    from kubeflow_datacache import DataCache
    from kubeflow_datacache.torch import StreamingDataLoader, StreamingDataset

    dataset = StreamingDataset(DataCache(config["endpoint"], retry_seconds=600), **config["options"], columns=["id"])
    loader = StreamingDataLoader(dataset, num_workers=1, device=ray.train.torch.get_device())
    state: dict[str, Any] = {"loader": loader.state_dict(), "steps": 0}
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder, "state.pt"))
        loader.load_state_dict(state["loader"])
    steps, seen = state["steps"], []
    rank = ray.train.get_context().get_world_rank()
    while steps < EPOCHS * len(loader):
        for batch in loader:
            seen.append(batch["id"].tolist())
            Path(config["folder"], f"{rank}-{int(checkpoint is not None)}.json").write_text(json.dumps(seen))
            steps += 1
            if steps in (SAVED, FAILS):
                report(steps, loader.state_dict() if steps == SAVED and rank == 0 else None)
            if steps == FAILS and checkpoint is None:
                raise RuntimeError("fails once")


def report(steps: int, state: dict[str, Any] | None) -> None:
    """Reports to Ray, with a checkpoint if there is a state: one rank's serves all. Waits for the other worker."""
    with tempfile.TemporaryDirectory() as folder:
        saved = None
        if state is not None:
            torch.save({"loader": state, "steps": steps}, Path(folder, "state.pt"))
            saved = ray.train.Checkpoint.from_directory(folder)
        ray.train.report({"steps": steps}, checkpoint=saved)


def main() -> None:
    """Reads what to do from the command line."""
    config = json.loads(sys.argv[1])
    ray.init(num_cpus=WORKERS, include_dashboard=False)
    trainer = ray.train.torch.TorchTrainer(
        train,
        train_loop_config=config,
        scaling_config=ray.train.ScalingConfig(num_workers=WORKERS),
        run_config=ray.train.RunConfig(
            storage_path=config["folder"], failure_config=ray.train.FailureConfig(max_failures=1)
        ),
    )
    trainer.fit()
    ray.shutdown()


if __name__ == "__main__":
    main()
