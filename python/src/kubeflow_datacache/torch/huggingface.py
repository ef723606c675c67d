# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's Trainer with a StreamingDataset.

from kubeflow_datacache.torch.huggingface import CacheTrainer

CacheTrainer(model=model, args=args, train_dataset=StreamingDataset(cache, global_batch_size=64)).train()
"""

from __future__ import annotations

import math
from typing import Any

from kubeflow_datacache.extras import needs
from kubeflow_datacache.torch.dataset import StreamingDataset
from kubeflow_datacache.torch.loader import StreamingDataLoader

with needs("huggingface", "kubeflow_datacache.torch.huggingface"):
    from torch.utils.data import DataLoader
    from transformers import Trainer, TrainerCallback
    from transformers.trainer_callback import ExportableState


class CacheTrainer(Trainer):
    """A transformers.Trainer that accepts StreamingDatasets for training, evaluation and prediction.

    A dataset's global_batch_size sets the rows per step over all ranks: per_device_train_batch_size and
    per_device_eval_batch_size have no effect. Workers, prefetching and pinned memory follow the dataloader_* arguments.
    Every epoch has its own order; each evaluation reads epoch 0 of its dataset, whose global_batch_size the number of
    ranks must divide. resume_from_checkpoint goes on at the exact row, also with another number of ranks, without
    reading the steps before it, and raises StateError if the dataset is not that of the checkpoint. Columns are passed
    to the model by name: select them with columns= or create them in a transform.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.add_callback(_Position())

    def get_train_dataloader(self) -> DataLoader[Any]:
        """The data loader of train_dataset; for other kinds of dataset, Trainer's own."""
        return self._streamed(self.train_dataset) or super().get_train_dataloader()

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """The data loader of an evaluation; for other kinds of dataset, Trainer's own."""
        chosen: Any = self.eval_dataset if eval_dataset is None else eval_dataset
        chosen = self.eval_dataset[chosen] if isinstance(chosen, str) else chosen  # pyright: ignore[reportOptionalSubscript]
        return self._streamed(chosen) or super().get_eval_dataloader(eval_dataset)

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader[Any]:
        """The data loader of a prediction; for other kinds of dataset, Trainer's own."""
        return self._streamed(test_dataset) or super().get_test_dataloader(test_dataset)

    def _streamed(self, dataset: Any) -> Any:
        """A loader of a StreamingDataset from its start; None for other datasets."""
        if not isinstance(dataset, StreamingDataset):
            return None
        own = self.args
        if dataset is not self.train_dataset:
            dataset.seek(0)
        loader = StreamingDataLoader(
            dataset,
            num_workers=own.dataloader_num_workers,
            prefetch_factor=own.dataloader_prefetch_factor,
            persistent_workers=own.dataloader_persistent_workers,
            pin_memory=own.dataloader_pin_memory,
        )
        return self.accelerator.prepare(loader)


class _Position(TrainerCallback, ExportableState):
    """Moves the loader to the trainer's own step, and keeps the loader's state in trainer_state.json.

    After a resume, Trainer drops the items of the epoch's first steps, in a loader that it makes of the dataset: the
    dataset returns blanks in their place.
    """

    def __init__(self) -> None:
        self._loader: StreamingDataLoader | None = None

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of this object."""
        return {"args": {}, "attributes": {"saved": self._loader.state_dict() if self._loader else None}}

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Moves the loader to where the trainer is."""
        loader = kwargs.get("train_dataloader")
        if not isinstance(loader, StreamingDataLoader):
            return
        saved = state.stateful_callbacks.get(type(self).__name__, {}).get("attributes", {}).get("saved")
        if self._loader is not loader and saved:
            loader.load_state_dict(saved)
            loader.state_dict()  # raises StateError if the dataset is another one
        self._loader = loader
        updates = max(1, math.ceil(len(loader) / args.gradient_accumulation_steps))
        epoch, done = divmod(state.global_step, updates)
        steps = 0 if args.ignore_data_skip else done * args.gradient_accumulation_steps
        loader.set_epoch(epoch)
        here = {**loader.state_dict(), "epoch": epoch, "next_step": steps} if steps else None
        loader.dataset.seek(epoch, here, blanks=steps)
