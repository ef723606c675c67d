# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A dataset for Megatron-Bridge.

from kubeflow_datacache.torch.megatron_bridge import CacheProvider

cfg.dataset = CacheProvider(seq_length=4096, seed=7)
pretrain(cfg, forward_step, callbacks=[cfg.dataset.callback()])
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch.distributed as dist

from kubeflow_datacache.cache import DataCache
from kubeflow_datacache.torch.megatron import MegatronBatches, megatron_batches

# Megatron-Bridge wants CUDA and Python 3.12, so the checks of this repository run without it.
from megatron.bridge.data.base import DatasetProvider  # pyright: ignore[reportMissingImports]  # isort: skip
from megatron.bridge.training.callbacks import Callback  # pyright: ignore[reportMissingImports]  # isort: skip

_FILE: Final = "datacache.json"  # beside the checkpoints: a loader state, which names the dataset


@dataclass
class CacheProvider(DatasetProvider):  # pyright: ignore[reportUntypedBaseClass]
    """The token sequences of a cache as Megatron-Bridge's dataset; see megatron_batches for the parameters.

    endpoint: of the cache; None for DataCache.from_env(). Needs callback() among pretrain's callbacks, which tells it
    how many samples the checkpoint has consumed, and compares the dataset with that of the checkpoint. It has no
    validation data: set eval_iters to 0.
    """

    seq_length: int = 0
    seed: int = 0
    column: str = "input_ids"
    labels: str | None = None
    endpoint: str | None = None
    verify: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    dataloader_type: Any = "external"

    def callback(self) -> Callback:
        """A callback for this dataset."""
        return _Position(self)

    def build_datasets(self, context: Any) -> tuple[MegatronBatches, None, None]:
        """The training's micro-batches, from the checkpoint's place on."""
        begun: Any = self.__dict__.get("_begun")
        if begun is None:
            raise ValueError("CacheProvider: give pretrain callbacks=[cfg.dataset.callback()], which tells it the step")
        batches = megatron_batches(
            DataCache.from_env() if self.endpoint is None else DataCache(self.endpoint),
            consumed_samples=begun.train_state.consumed_train_samples,
            global_batch_size=begun.cfg.train.global_batch_size,
            micro_batch_size=begun.cfg.train.micro_batch_size,
            seq_length=self.seq_length,
            seed=self.seed,
            column=self.column,
            labels=self.labels,
            verify=self.verify,
            group=context.pg_collection.dp,
            **self.options,
        )
        loader = batches.loader
        if (file := _file(begun.cfg.checkpoint.load)) is not None and file.exists():
            epoch, step = loader.epoch, loader.next_step
            saved = json.loads(file.read_text())
            loader.load_state_dict(
                {**saved, "epoch": epoch, "next_step": step}
            )  # raises StateError for another dataset
        self.__dict__["_state"] = loader.state_dict()
        return batches, None, None


class _Position(Callback):  # pyright: ignore[reportUntypedBaseClass]
    """Tells a CacheProvider where the training begins, and saves which dataset it read."""

    def __init__(self, provider: CacheProvider) -> None:
        self._provider = provider

    def on_data_init_start(self, context: Any) -> None:
        """After the checkpoint was loaded."""
        self._provider.__dict__["_begun"] = context.state

    def on_checkpoint_save(self, context: Any) -> None:
        """After a checkpoint was saved."""
        state, file = self._provider.__dict__.get("_state"), _file(context.state.cfg.checkpoint.save)
        if state is not None and file is not None and dist.get_rank() == 0:
            written = file.with_suffix(".tmp")
            written.write_text(json.dumps(state))
            written.replace(file)


def _file(folder: str | None) -> Path | None:
    """The file beside a folder's checkpoints; None if they are in no folder of this machine."""
    return None if folder is None or "://" in str(folder) else Path(folder, _FILE)
