# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""LanceDB's Permutation: a Lance table, map-style, read by batches of row numbers."""

from __future__ import annotations

from pathlib import Path

import lancedb  # pyright: ignore[reportMissingImports] - in the peers' environment alone
from lancedb.permutation import Permutation  # pyright: ignore[reportMissingImports] - in the peers' environment alone

from benchlib.tables import Table
from loaderbench import tensors
from loaderbench.case import ALONE, Batch, Case
from loaderbench.loaders import lance_streaming
from loaderbench.loaders.hf_map import Map

FIRST_USE = ALONE  # Lance's threads do not survive a fork


def prepare(table: Table, data: Path) -> None:
    """Writes the same Lance table as for StreamingDataset."""
    lance_streaming.prepare(table, data)


def open(case: Case) -> Map:
    """Takes row numbers from torch's sampler, and rows from __getitems__."""
    table = lancedb.connect(str(case.data)).open_table(lance_streaming.NAME)
    rows = Permutation.identity(table).with_transform(tensors.of_rows)
    return Map(_Batches(rows), case, _same, **({"multiprocessing_context": "forkserver"} if case.workers else {}))


class _Batches:
    """Adapts the dataset: with batch_size=None, DataLoader passes a list of row numbers to __getitem__."""

    def __init__(self, rows: Permutation) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, numbers: list[int]) -> Batch:
        return self._rows.__getitems__(numbers)


def _same(batch: Batch) -> Batch:
    return batch
