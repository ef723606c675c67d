# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The steps of torchtitan's trainer with its own checkpoints: of two ranks, then of other numbers from a checkpoint.

Prints the row ids of all steps of each as JSON. The model is a layer on CPUs, as torchtitan's own want GPUs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from forked import EPOCHS, SAVED, run_ranks
from torchtitan.components.checkpoint import CheckpointManager
from tyro import cli

from kubeflow_datacache import StateError
from kubeflow_datacache.torch.torchtitan import CacheDataLoader

LENGTH, LOCAL = 499, 2  # LOCAL: rows of a micro-batch


class Step:
    """The trainer's own state."""

    def __init__(self) -> None:
        self.step = 0

    def state_dict(self) -> dict[str, Any]:
        """As the trainer's."""
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """As the trainer's."""
        self.step = state["step"]


def manager(folder: str, dataloader: CacheDataLoader, train_state: Step) -> CheckpointManager:
    """torchtitan's checkpoints of this training."""
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer)
    config: Any = CheckpointManager.Config(enable=True, interval=SAVED, last_save_model_only=False)
    states: Any = {"optimizers": optimizer, "lr_schedulers": schedule}
    return config.build(
        dataloader=dataloader,
        model_parts=[model],
        states={"train_state": train_state},
        sd_adapter=None,
        base_folder=folder,
        **states,
    )


def train(config: CacheDataLoader.Config, folder: str) -> list[list[int]]:
    """The ids of this rank's steps, from the latest checkpoint in the folder to the end of the last epoch."""
    world, train_state = dist.get_world_size(), Step()
    loader: Any = config.build(
        dp_world_size=world, dp_rank=dist.get_rank(), tokenizer=None, seq_len=LENGTH, local_batch_size=LOCAL,
        snapshot_every_n_steps=None,
    )  # fmt: skip
    checkpoints = manager(folder, loader, train_state)
    checkpoints.load(step=-1)
    accumulation = config.global_batch_size // (world * LOCAL)
    data, steps = iter(loader), list[list[int]]()
    while train_state.step < EPOCHS * (161 // config.global_batch_size):
        train_state.step += 1
        ids: list[int] = []
        for micro in range(accumulation):
            inputs, labels = next(data)
            assert inputs["input"].shape == inputs["positions"].shape == labels.shape == (LOCAL, LENGTH)
            assert (inputs["input"][:, 1:] == labels[:, :-1]).all()
            ids += (inputs["input"][:, 0] // 31).tolist()
            if micro == 0 and accumulation > 1:
                refused(loader)
        steps.append(ids)
        if train_state.step == SAVED:
            checkpoints.save(train_state.step)
    return steps


def refused(loader: CacheDataLoader) -> None:
    """Asserts that a state within a step is refused."""
    said = ""
    try:
        loader.state_dict()
    except StateError as error:
        said = str(error)
    assert "training.global_batch_size" in said


def main() -> None:
    """Runs the trainings that the command line describes."""
    endpoint, group, folder, saved_with, worlds = json.loads(sys.argv[1])
    given: Any = CacheDataLoader.Config(global_batch_size=group, column="tokens", endpoint=endpoint)
    config = cli(CacheDataLoader.Config, default=given, args=["--seed", "9"])  # as torchtitan reads its own flags
    done = {"whole": run_ranks(saved_with, train, config, folder)}
    for world in worlds:
        done[str(world)] = run_ranks(world, train, config, folder)
    assert (Path(folder) / "checkpoint" / f"step-{SAVED}").is_dir()
    print(json.dumps(done))


if __name__ == "__main__":
    main()
