# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""DLIO's data loaders: an empty one, two of pyarrow, ours. Each gives a rank the tensors of its batches, by column."""

from __future__ import annotations

import itertools
import json
import os
import queue
import random
import threading
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from dlio_benchmark.common.enumerations import DataLoaderType  # pyright: ignore[reportMissingImports] - by make bench NAME=mlperf
from dlio_benchmark.data_loader.base_data_loader import BaseDataLoader  # pyright: ignore[reportMissingImports] - as above

from kubeflow_datacache import DataCache, World
from kubeflow_datacache.rows.block import StepBlock

Tensors = dict[str, torch.Tensor]
SETTINGS: Final[dict[str, Any]] = json.loads(os.environ.get("MLPERF", "{}"))
_AHEAD: Final = 2  # batches that the loaders of pyarrow read ahead, as DLIO's prefetch_size


class Base(BaseDataLoader):
    """One rank's batches of an epoch; next begins an epoch."""

    def __init__(self, format_type: Any, dataset_type: Any, epoch_number: int) -> None:
        super().__init__(format_type, dataset_type, epoch_number, DataLoaderType.PYTORCH)
        self.rank, self.ranks = self._args.my_rank, self._args.comm_size

    def read(self) -> None:
        """DLIO calls it once, before the first epoch."""

    def next(self) -> Iterator[Tensors]:
        """The batches of the next epoch."""
        self.epoch_number += 1
        return self.batches(self.epoch_number)

    def batches(self, epoch: int) -> Iterator[Tensors]:
        """The batches of an epoch."""
        raise NotImplementedError

    def finalize(self) -> None:
        """DLIO calls it after each epoch."""


class Empty(Base):
    """The same batch, always: what is left is DLIO's loop and MPI."""

    def batches(self, epoch: int) -> Iterator[Tensors]:
        """The batches of an epoch."""
        return itertools.repeat({"nothing": torch.zeros(1)})


class _Pyarrow(Base):
    """Reads the rank's files in an order of the epoch, in a thread, some batches ahead."""

    def batches(self, epoch: int) -> Iterator[Tensors]:
        """The batches of an epoch."""
        ready: queue.Queue[Tensors | None] = queue.Queue(_AHEAD)

        def fill() -> None:
            for batch in self.decoded(self.files(epoch)):
                ready.put(batch)
            ready.put(None)

        threading.Thread(target=fill, daemon=True).start()
        return iter(ready.get, None)

    def files(self, epoch: int) -> list[str]:
        """This rank's files."""
        paths = list(SETTINGS["paths"])
        random.Random(epoch).shuffle(paths)
        return paths[self.rank :: self.ranks]

    def decoded(self, paths: list[str]) -> Iterator[Tensors]:
        """The batches of some files."""
        raise NotImplementedError


class BySample(_Pyarrow):
    """Each sample becomes tensors by itself, and a batch is stacked of samples, as torch's DataLoader does."""

    def decoded(self, paths: list[str]) -> Iterator[Tensors]:
        """The batches of some files."""
        samples: list[Tensors] = []
        for group in _groups(paths):
            for i in range(group.num_rows):
                samples.append(
                    {name: _sample(column[i]) for name, column in zip(group.schema.names, group, strict=True)}
                )
                if len(samples) == self.batch_size:
                    yield {name: torch.stack([sample[name] for sample in samples]) for name in group.schema.names}
                    samples = []


class ByRowGroup(_Pyarrow):
    """Whole row groups become tensors, and batches are slices of them."""

    def decoded(self, paths: list[str]) -> Iterator[Tensors]:
        """The batches of some files."""
        left: list[pa.RecordBatch] = []
        for group in _groups(paths):
            left.append(group)
            while sum(part.num_rows for part in left) >= self.batch_size:
                whole = pa.concat_batches(left) if len(left) > 1 else left[0]
                rows, left = whole.slice(0, self.batch_size), [whole.slice(self.batch_size)]
                yield StepBlock(range(1), rows.num_rows, rows).torch(0)


class Ours(Base):
    """Shuffled rows of a cache."""

    def read(self) -> None:
        """Opens the loader."""
        self._loader = DataCache(SETTINGS["endpoint"]).loader(
            global_batch_size=self.batch_size * self.ranks, seed=1, world=World(self.rank, self.ranks)
        )

    def batches(self, epoch: int) -> Iterator[Tensors]:
        """The batches of an epoch."""
        self._loader.set_epoch(epoch)
        return (batch.torch() for batch in self._loader)


def _groups(paths: list[str]) -> Iterator[pa.RecordBatch]:
    """The row groups of files, decoded."""
    for path in paths:
        with pq.ParquetFile(path) as file:
            for i in range(file.num_row_groups):
                yield from (
                    file.read_row_group(i, columns=SETTINGS["columns"], use_threads=False).combine_chunks().to_batches()
                )


def _sample(value: pa.Scalar) -> torch.Tensor:
    """A tensor of one value, or of a list."""
    if isinstance(value, pa.FixedSizeListScalar):
        return torch.from_numpy(np.array(value.values.to_numpy()))
    return torch.tensor(value.as_py())
