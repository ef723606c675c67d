# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The dataset class of Kubeflow's enhancement proposal 2655, for code that was written for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from torch.utils.data import IterableDataset, get_worker_info

from kubeflow_datacache.cache import DataCache
from kubeflow_datacache.options import whole
from kubeflow_datacache.rows.slab import DEFAULT
from kubeflow_datacache.torch.batch import Columns
from kubeflow_datacache.world import World


class ArrowCacheDataset(IterableDataset[Any]):
    """Record batches of batch_size rows of the TrainJob's cache; override from_arrow_rb_to_tensor.

    As the proposal's class, and unlike it every epoch has an order of its own, and every rank as many batches: the rows
    of the last incomplete step over all ranks are left out. Ranks and workers share the batches. set_epoch before each
    epoch, with workers that are not persistent. StreamingDataset does more, such as resuming.

    cache: DataCache.from_env() unless given; use it with DataLoader(dataset, batch_size=None).
    """

    def __init__(self, seed: int = 0, batch_size: int = 128, *, cache: DataCache | None = None) -> None:
        self.seed = whole("seed", seed, 0, 1 << 64)
        self.batch_size = whole("batch_size", batch_size, 1)
        self._cache = cache or DataCache.from_env()
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch, and with it the order, of the iterations that begin from now on."""
        self._epoch = whole("epoch", epoch, 0, 1 << 64)

    def from_arrow_rb_to_tensor(self, chunk: pa.RecordBatch) -> Iterator[Any]:
        """What the training gets for a record batch: any number of items; the columns as tensors unless overridden."""
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
