# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's Trainer over a cache.

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
    """A transformers.Trainer whose train_dataset is a StreamingDataset.

    The dataset's global_batch_size is the batch of a step over all ranks: per_device_train_batch_size has no effect.
    Workers, prefetching and pinned memory are the dataloader_* arguments. Every epoch has an order of its own, and
    resume_from_checkpoint goes on at the row, with as many ranks as there are now; Trainer reads the skipped steps of
    the epoch again. Columns go to the model by name: choose them with columns= or make them in a transform.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.add_callback(_Epochs())

    def get_train_dataloader(self) -> DataLoader[Any]:
        """The loader of train_dataset; any other dataset's is Trainer's own."""
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
    """Sets the epoch before Trainer skips steps of it after a resume: its loader for the rest has no set_epoch."""

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        loader = kwargs.get("train_dataloader")
        if isinstance(loader, StreamingDataLoader):
            loader.set_epoch(int(state.epoch or 0))
