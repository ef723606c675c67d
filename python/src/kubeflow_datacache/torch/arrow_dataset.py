# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""ArrowCacheDataset, the dataset class of Kubeflow's enhancement proposal 2655."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from torch.utils.data import IterableDataset, get_worker_info

from kubeflow_datacache.arguments import check_int
from kubeflow_datacache.cache import DataCache
from kubeflow_datacache.rows.arrays import DEFAULT
from kubeflow_datacache.torch.batch import Columns
from kubeflow_datacache.world import World


class ArrowCacheDataset(IterableDataset[Any]):
    """Record batches of batch_size rows from the TrainJob's cache. Override from_arrow_rb_to_tensor.

    Differs from the proposal's class in two ways: every epoch has its own order, and every rank gets the same number of
    batches, as the rows of the last incomplete step over all ranks are left out. Ranks and workers divide the batches.
    Call set_epoch before each epoch, and do not use persistent workers. StreamingDataset has more features, such as
    resuming.

    cache: DataCache.from_env() if not given. Use with DataLoader(dataset, batch_size=None).
    """

    def __init__(self, seed: int = 0, batch_size: int = 128, *, cache: DataCache | None = None) -> None:
        self.seed = check_int("seed", seed, 0, 1 << 64)
        self.batch_size = check_int("batch_size", batch_size, 1)
        self._cache = cache or DataCache.from_env()
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch, and so the order, of later iterations."""
        self._epoch = check_int("epoch", epoch, 0, 1 << 64)

    def from_arrow_rb_to_tensor(self, chunk: pa.RecordBatch) -> Iterator[Any]:
        """Converts a record batch to any number of items for training; by default one item, the columns as tensors."""
        yield Columns.of(chunk, DEFAULT)

    def __iter__(self) -> Iterator[Any]:
        world, info = World.detect(), get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        loader = self._cache.loader(
            global_batch_size=self.batch_size * world.size, seed=self.seed, world=world, worker=worker, workers=workers
        )
        loader.set_epoch(self._epoch)
        with contextlib.closing(loader):
            for batch in loader:
                yield from self.from_arrow_rb_to_tensor(batch.arrow())
