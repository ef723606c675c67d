# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The steps of torchtitan's trainer with its own checkpoints: of two ranks, then of other numbers from a checkpoint.

Prints the row ids of all steps of each, and the epochs that were verified, as JSON. The model is a layer on CPUs, as
torchtitan's own want GPUs.
"""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from forked import EPOCHS, SAVED, run_ranks
from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.components.validate import Validator
from torchtitan.tools import utils
from tyro import cli

from frameworks import Proved
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


def train(config: CacheDataLoader.Config, folder: str, parts: int = 1) -> tuple[list[list[int]], list[Any]]:
    """The ids of this rank's steps, from the latest checkpoint in the folder to the end of the last epoch; and the
    epochs that were verified. parts: how many ranks hold parts of one model."""
    world, train_state, proved = dist.get_world_size() // parts, Step(), Proved()
    loader: Any = config.build(
        dp_world_size=world, dp_rank=dist.get_rank() // parts, tokenizer=None, seq_len=LENGTH, local_batch_size=LOCAL,
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
    return steps, proved.epochs


class Model(torch.nn.Module):
    """Records the ids of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def forward(self, inputs: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """The inputs."""
        assert inputs.shape == positions.shape
        self.seen += (inputs[:, 0] // 31).tolist()
        return inputs


def validate(config: CacheDataLoader.Config) -> list[int]:
    """The ids that torchtitan's validator reads on this rank."""
    utils.device_type = "cpu"
    dataloader, model = replace(config, options={"shuffle": False}), Model()
    given: Any = {
        "parallelism": SimpleNamespace(spmd_backend="default"),
        "parallel_dims": SimpleNamespace(pp_enabled=False, dp_enabled=False, cp_enabled=False, dp_cp_enabled=False),
        "metrics_processor": SimpleNamespace(ntokens_since_last_log=0, log_validation=lambda **_: None),
        "tokenizer": None,
    }
    validator: Any = Validator.Config(enable=True, dataloader=dataloader).build(
        dp_world_size=dist.get_world_size(), dp_rank=dist.get_rank(), seq_len=LENGTH, local_batch_size=LOCAL,
        loss_fn=lambda predictions, labels: (predictions.float().sum(), labels),
        validation_context=contextlib.nullcontext, **given,
    )  # fmt: skip
    for step in range(2):
        validator.validate([model], step)
    return model.seen


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
    # as torchtitan reads its own flags
    config = cli(CacheDataLoader.Config, default=given, args=["--seed", "9", "--verify"])
    done = {"whole": run_ranks(saved_with, train, config, folder)}
    for world in worlds:
        done[str(world)] = run_ranks(world, train, config, folder)
    done["parts"] = run_ranks(4, train, config, folder, 2)
    done["validated"] = run_ranks(saved_with, validate, config)
    assert (Path(folder) / "checkpoint" / f"step-{SAVED}").is_dir()
    print(json.dumps(done))


if __name__ == "__main__":
    main()
