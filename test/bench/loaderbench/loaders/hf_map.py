# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Hugging Face datasets, map-style: a memory-mapped Arrow table, read by batches of row numbers."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets  # pyright: ignore[reportMissingImports] - in the peers' environment alone
import torch  # pyright: ignore[reportMissingImports] - in the peers' environment alone
from torch.utils import data as torch_data  # pyright: ignore[reportMissingImports] - in the peers' environment alone
from torchdata import stateful_dataloader as stateful  # pyright: ignore[reportMissingImports] - in the peers' environment alone
from torchdata.stateful_dataloader import sampler as stateful_sampler  # pyright: ignore[reportMissingImports] - in the peers' environment alone

from benchlib.tables import Table
from loaderbench import tensors
from loaderbench.case import ALWAYS, BATCH, SEED, Batch, Case

FIRST_USE = ALWAYS


def prepare(table: Table, data: Path) -> None:
    """Writes one Arrow dataset of all files."""
    with tempfile.TemporaryDirectory(dir=data.parent) as cache:
        datasets.Dataset.from_parquet(table.files, cache_dir=cache).save_to_disk(str(data))


def open(case: Case) -> Map:
    """A DataLoader with a BatchSampler, as documented for Arrow output."""
    rows = datasets.load_from_disk(str(case.data)).with_format("arrow")
    return Map(rows, case, tensors.of_table)


class Map:
    """Batches of a map-style dataset that accepts a list of row numbers.

    Resumes with torchdata's StatefulDataLoader and samplers.
    """

    def __init__(self, rows: Any, case: Case, collate: Any, **options: Any) -> None:
        kind, samplers = (
            (stateful.StatefulDataLoader, stateful_sampler) if case.resumable else (torch_data.DataLoader, torch_data)
        )
        seeded = torch.Generator().manual_seed(SEED)
        order = samplers.RandomSampler(rows, generator=seeded) if case.shuffle else torch_data.SequentialSampler(rows)
        self._loader: Any = kind(
            rows,
            sampler=samplers.BatchSampler(order, BATCH, drop_last=False),
            batch_size=None,
            collate_fn=collate,
            num_workers=case.workers,
            **options,
        )

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._loader)

    def state(self) -> Any:
        return self._loader.state_dict()

    def restore(self, state: Any) -> None:
        self._loader.load_state_dict(state)

    def close(self) -> None:
        pass
