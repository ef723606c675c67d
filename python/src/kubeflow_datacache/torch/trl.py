# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows of a StreamingDataset as a TRL trainer prepares them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any

import pyarrow as pa
from torch import Tensor

from kubeflow_datacache.extras import needs
from kubeflow_datacache.torch.dataset import StreamingDataset


class TrlRows:
    """A StreamingDataset as the datasets.IterableDataset that a TRL trainer inspects and prepares row by row.

    iterable: one row until prepare is called, for the trainer to see the columns. A dataset whose transform returns
    tensors by name is ready for the model: its batches stay as they are.
    """

    def __init__(self, dataset: StreamingDataset) -> None:
        with needs("trl", "TRL with a StreamingDataset"):
            from datasets import IterableDataset
        self.dataset = dataset
        self._rows, self._ready = _first_row(dataset)
        self.iterable: Any = IterableDataset.from_generator(self._generate)
        self._prepared = self.iterable

    def prepare(self, prepare: Callable[[Any], Any]) -> None:
        """Applies a trainer's lazy preparation, such as its tokenization, to the rows of later batches."""
        if not self._ready:
            self._prepared = prepare(self.iterable)

    def collate(self, batch: Mapping[str, Any], collator: Callable[[list[Any]], Any]) -> Any:
        """The batch for the model: its rows prepared, then collated."""
        if self._ready:
            return batch
        columns = {
            name: value.tolist() if isinstance(value, Tensor) else value.to_pylist() for name, value in batch.items()
        }
        self._rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        if not (examples := list(self._prepared)):
            raise ValueError(
                f"this rank has no row to train on: its share of the step had {len(self._rows)} rows before TRL's"
                " preparation. Take a larger global_batch_size or a larger max_length"
            )
        return collator(examples)

    def _generate(self) -> Iterator[Any]:
        yield from self._rows


def check_arguments(args: Any) -> None:
    """Raises ValueError for arguments of TRL that change which rows a step has."""
    for name, instead in (
        ("packing", "pack rows in a transform, or before they are cached"),
        ("eval_packing", "pack rows in a transform, or before they are cached"),
        ("shuffle_dataset", "the dataset has an order of its own: StreamingDataset(..., seed=7)"),
    ):
        if getattr(args, name, None):
            raise ValueError(f"{name} = True changes the rows of a step, and a resume would lose its place: {instead}")


def _first_row(dataset: StreamingDataset) -> tuple[list[dict[str, Any]], bool]:
    """A row of the dataset, and whether its batches are ready for the model."""
    position = {**dataset.position(), "world": (0, 1)}
    with closing(dataset.open(0, 1, position)) as loader:
        if (batch := next(iter(loader), None)) is None:
            raise ValueError("train_dataset: an epoch has no steps: choose a smaller global_batch_size")
        if isinstance(batch.data, Mapping):
            return [{name: values[0] for name, values in batch.data.items()}], True
        rows: pa.RecordBatch = batch.arrow()
        return rows.slice(0, 1).to_pylist(), False
