# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's Trainer with a StreamingDataset.

from kubeflow_datacache.torch.huggingface import CacheTrainer

CacheTrainer(model=model, args=args, train_dataset=StreamingDataset(cache, global_batch_size=64)).train()
"""

from __future__ import annotations

from typing import Any

from kubeflow_datacache.extras import needs
from kubeflow_datacache.torch.dataset import StreamingDataset
from kubeflow_datacache.torch.loader import StreamingDataLoader

with needs("huggingface", "kubeflow_datacache.torch.huggingface"):
    from torch.utils.data import DataLoader
    from transformers import Trainer, TrainerCallback


class CacheTrainer(Trainer):
    """A transformers.Trainer that accepts a StreamingDataset as train_dataset.

    The dataset's global_batch_size sets the rows per step over all ranks: per_device_train_batch_size has no effect.
    Workers, prefetching and pinned memory follow the dataloader_* arguments. Every epoch has its own order.
    resume_from_checkpoint resumes at the exact row, also with another number of ranks; to get there, Trainer reads the
    epoch's earlier steps again. Columns are passed to the model by name: select them with columns= or create them in a
    transform.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.add_callback(_Epochs())

    def get_train_dataloader(self) -> DataLoader[Any]:
        """The data loader of train_dataset; for other kinds of dataset, Trainer's own."""
        dataset = self.train_dataset
        if not isinstance(dataset, StreamingDataset):
            return super().get_train_dataloader()
        own = self.args
        loader = StreamingDataLoader(
            dataset,
            num_workers=own.dataloader_num_workers,
            prefetch_factor=own.dataloader_prefetch_factor,
            persistent_workers=own.dataloader_persistent_workers,
            pin_memory=own.dataloader_pin_memory,
        )
        return self.accelerator.prepare(loader)


class _Epochs(TrainerCallback):
    """Sets the epoch before Trainer skips steps after a resume: the loader it uses for the remaining steps has no
    set_epoch."""

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        loader = kwargs.get("train_dataloader")
        if isinstance(loader, StreamingDataLoader):
            loader.set_epoch(int(state.epoch or 0))
