# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's Trainer, and TRL's SFTTrainer, with a StreamingDataset.

from kubeflow_datacache.torch.huggingface import CacheTrainer

CacheTrainer(model=model, args=args, train_dataset=StreamingDataset(cache, global_batch_size=64)).train()

class CacheSFTTrainer(CacheTrainer, trl.SFTTrainer): ...
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from kubeflow_datacache.extras import needs
from kubeflow_datacache.proof import Proof, verify
from kubeflow_datacache.torch.dataset import StreamingDataset
from kubeflow_datacache.torch.loader import StreamingDataLoader
from kubeflow_datacache.torch.trl import TrlRows, check_arguments

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
    to the model by name: select them with columns= or create them in a transform. verify=True proves that the rows of
    each epoch were trained on exactly once; see Proof.

    Also a base beside TRL's SFTTrainer, named first. Rows are then tokenized, truncated and collated as TRL does it,
    unless a transform returns tensors by name. Packing is refused, and trainers that choose their own prompts, such as
    GRPOTrainer.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for base in cls.__mro__:
            own = base is Trainer or issubclass(base, CacheTrainer)
            if not own and "get_train_dataloader" in vars(base):
                raise TypeError(
                    f"{cls.__name__}: {base.__name__} repeats and orders prompts itself, so its step is no global batch"
                    " of a StreamingDataset: use SFTTrainer, or give it a datasets.Dataset without CacheTrainer"
                )

    def __init__(self, *args: Any, verify: bool = False, **kwargs: Any) -> None:
        self._position = _Position(verify=verify)
        self._trl_rows: dict[int, TrlRows] = {}
        self._shown: TrlRows | None = None  # the train_dataset as TRL inspects it
        if hasattr(super(), "_prepare_dataset") and isinstance(given := kwargs.get("train_dataset"), StreamingDataset):
            self._shown = TrlRows(given)
            kwargs["train_dataset"] = self._shown.iterable
        super().__init__(*args, **kwargs)
        self.add_callback(self._position)

    def _prepare_dataset(self, dataset: Any, processing_class: Any, args: Any, *rest: Any, **named: Any) -> Any:
        """TRL's preparation: of a StreamingDataset it becomes that of its batches."""
        prepare: Any = super()._prepare_dataset  # pyright: ignore[reportUnknownMemberType] - TRL's trainers have it
        if self._shown is not None and dataset is self._shown.iterable:
            rows = self._shown
        elif isinstance(dataset, StreamingDataset):
            rows = self._trl_rows.get(id(dataset)) or TrlRows(dataset)
        else:
            return prepare(dataset, processing_class, args, *rest, **named)
        check_arguments(args)
        rows.prepare(lambda iterable: prepare(iterable, processing_class, args, *rest, **named))
        self._trl_rows[id(rows.dataset)] = rows
        return rows.dataset

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: Any) -> Any:
        """The batches of an update, prepared as TRL does it."""
        rows = self._trl_rows.get(id(self.train_dataset))
        given = self._position.noted(epoch_iterator)
        prepared = given if rows is None else (rows.collate(batch, self.data_collator) for batch in given)
        return super().get_batch_samples(prepared, num_batches, device)

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
        rows = self._trl_rows.get(id(dataset)) if dataset is not self.train_dataset else None
        loader = StreamingDataLoader(
            dataset,
            collate_fn=None if rows is None else lambda batch: rows.collate(batch, self.data_collator),
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

    def __init__(self, *, verify: bool) -> None:
        self._loader: StreamingDataLoader | None = None
        self._verify = verify
        self._proof: Proof | None = None
        self._noted: list[Any] = []  # the batches of the current update
        self._sums: dict[str, Any] = {}  # the proof's state at the last checkpoint

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of this object."""
        saved = self._loader.state_dict() if self._loader else None
        return {"args": {}, "attributes": {"saved": saved, "sums": self._sums}}

    def noted(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yields the batches. They count as trained on at the end of the update."""
        for batch in batches:
            if self._verify:
                self._noted.append(batch)
            yield batch

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Counts the rows of the update."""
        if self._proof is None:
            return
        noted, self._noted = self._noted, []
        for batch in noted:
            self._proof(batch)
        if control.should_save:  # on all ranks; state() is called on one
            self._sums = self._proof.state_dict()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Moves the loader to where the trainer is."""
        loader = kwargs.get("train_dataloader")
        if not isinstance(loader, StreamingDataLoader):
            return
        kept = state.stateful_callbacks.get(type(self).__name__, {}).get("attributes", {})
        if self._loader is not loader:
            if saved := kept.get("saved"):
                loader.load_state_dict(saved)
                loader.state_dict()  # raises StateError if the dataset is another one
            self._proof = verify(loader) if self._verify else None
            if self._proof is not None:
                self._proof.load_state_dict(kept.get("sums") or {})
        self._loader = loader
        updates = max(1, math.ceil(len(loader) / args.gradient_accumulation_steps))
        epoch, done = divmod(state.global_step, updates)
        steps = 0 if args.ignore_data_skip else done * args.gradient_accumulation_steps
        loader.set_epoch(epoch)
        here = {**loader.state_dict(), "epoch": epoch, "next_step": steps} if steps else None
        loader.dataset.seek(epoch, here, blanks=steps)
