# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The baseline without a library: torch's DataLoader over slices of pyarrow.dataset's batches."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from torch.utils.data import (  # pyright: ignore[reportMissingImports] - in the peers' environment alone
    DataLoader,
    IterableDataset,
    get_worker_info,
)

from benchlib.tables import Table
from loaderbench import tensors
from loaderbench.case import ALONE, BATCH, SEED, Batch, Case

BLOCK = 8192
FIRST_USE = ALONE  # a worker forked after pyarrow has used its threads can wait for them for ever


def prepare(table: Table, data: Any) -> None:
    """Does nothing: reads the table's own files."""


def open(case: Case) -> ArrowDataset:
    """A DataLoader that divides the files among its workers."""
    return ArrowDataset(case)


class ArrowDataset:
    """Its state is a number of batches; resuming reads and drops that many."""

    def __init__(self, case: Case) -> None:
        self._loader = DataLoader(_Slices(case), batch_size=None, num_workers=case.workers)
        self._skip = self._given = 0

    def __iter__(self) -> Iterator[Batch]:
        for batch in itertools.islice(self._loader, self._skip, None):
            self._given += 1
            yield batch

    def state(self) -> int:
        return self._given

    def restore(self, state: int) -> None:
        self._skip = state

    def close(self) -> None:
        pass


class _Slices(IterableDataset):
    def __init__(self, case: Case) -> None:
        self._case = case

    def __iter__(self) -> Iterator[Batch]:
        files = list(self._case.table.files)
        if self._case.shuffle:
            random.Random(SEED).shuffle(files)
        worker = get_worker_info()
        mine = files if worker is None else files[worker.id :: worker.num_workers]
        for rows in _batches(self._blocks(mine)):
            yield tensors.of_rows(rows)

    def _blocks(self, files: list[str]) -> Iterator[pa.RecordBatch]:
        order = np.random.default_rng(SEED)
        for block in ds.dataset(files).to_batches(batch_size=BLOCK):
            yield block.take(pa.array(order.permutation(len(block)))) if self._case.shuffle else block


def _batches(blocks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows in batches of BATCH rows: slices, except if a batch spans blocks."""
    rest: Any = None
    for block in blocks:
        if rest is not None and len(rest):
            need = BATCH - len(rest)
            rest = pa.concat_batches([rest, block.slice(0, need)])
            block = block.slice(need)
            if len(rest) < BATCH:
                continue
            yield rest
        whole = len(block) // BATCH * BATCH
        for start in range(0, whole, BATCH):
            yield block.slice(start, BATCH)
        rest = block.slice(whole)
    if rest is not None and len(rest):
        yield rest
