# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Hugging Face datasets, streaming: an IterableDataset over the Parquet files, batched as Arrow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets  # pyright: ignore[reportMissingImports] - in the peers' environment alone
from torch.utils.data import DataLoader  # pyright: ignore[reportMissingImports] - in the peers' environment alone

from benchlib.tables import Table
from loaderbench import tensors
from loaderbench.case import ALWAYS, BATCH, SEED, Batch, Case

BUFFER = 10_000
IMAGE_BUFFER = 2_000  # 40 MB for rows of 20 KB
FIRST_USE = ALWAYS


def prepare(table: Table, data: Path) -> None:
    """Does nothing: reads the table's own files."""


def open(case: Case) -> Streaming:
    """A DataLoader over Arrow batches of the shuffled or unshuffled stream."""
    return Streaming(case)


class Streaming:
    """Resumes with the dataset's own state."""

    def __init__(self, case: Case) -> None:
        rows = datasets.load_dataset("parquet", data_files=case.table.files, split="train", streaming=True)
        if case.shuffle:
            rows = rows.shuffle(seed=SEED, buffer_size=IMAGE_BUFFER if case.table.name == "images" else BUFFER)
        self._rows = rows.with_format("arrow").batch(BATCH)
        self._loader = DataLoader(self._rows, batch_size=None, num_workers=case.workers, collate_fn=_tensors)

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._loader)

    def state(self) -> Any:
        return self._rows.state_dict()

    def restore(self, state: Any) -> None:
        self._rows.load_state_dict(state)

    def close(self) -> None:
        pass


def _tensors(batch: Any) -> Batch:
    """Converts a batch, which is a table with one row whose values are lists of the batch's rows."""
    return {name: tensors.of_column(batch[name].chunk(0).flatten()) for name in batch.column_names}
