# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""StreamingDataset: a cache's rows as an iterable-style torch dataset."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, Unpack

from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils.fetch import _IterableDatasetFetcher  # pyright: ignore[reportPrivateUsage]

from kubeflow_datacache.arguments import check_int, check_state
from kubeflow_datacache.cache import DataCache
from kubeflow_datacache.errors import StateError
from kubeflow_datacache.loader import Loader
from kubeflow_datacache.mixture import Mixture
from kubeflow_datacache.options import LoaderOptions, check_options, explicit_signature
from kubeflow_datacache.order.epoch import Share
from kubeflow_datacache.rows.batch import Batch
from kubeflow_datacache.state import is_complete, rescaled, warn_nothing_left
from kubeflow_datacache.torch.batch import item_of
from kubeflow_datacache.torch.shared_value import SharedValue
from kubeflow_datacache.torch.torchdata_state import MARK, loader_state_of
from kubeflow_datacache.world import World


class StreamingDataset(IterableDataset[Any]):
    """This rank's batches of an epoch of a cache or a Mixture, as TensorBatch or as the transform's results.

    Takes the parameters of LoaderOptions, except worker and workers. Use it with StreamingDataLoader, or with torch's
    DataLoader or torchdata's StatefulDataLoader and batch_size=None, as it returns whole batches. Any number of workers
    gives the same batches in the same order: worker w of M reads every M-th step, and the workers share prefetch_bytes.

    An iteration begins at the position of the last set_epoch or load_state_dict, also in persistent workers. As with
    torch's DistributedSampler, call set_epoch before each epoch: a dataset read by workers does not know how far the
    training has come. StreamingDataLoader knows, and moves on by itself.

    Connects in the process that iterates. A main process that only passes the dataset to workers does not connect, so
    workers may be forked; len() connects, and workers cannot be forked after that. Picklable. The world is detected
    when a worker or an iteration starts, unless it is given.
    """

    @explicit_signature
    def __init__(self, cache: DataCache | Mixture, **options: Unpack[LoaderOptions]) -> None:
        for name in ("worker", "workers"):
            if name in options:
                raise TypeError(f"{name} is no parameter of a StreamingDataset: the DataLoader says which worker reads")
        self._cache, self._options = cache, check_options(options)
        self._position = SharedValue(_at_begin(0))

    def __iter__(self) -> WorkerIterator:
        fetcher = sys._getframe(1).f_locals.get("self")  # pyright: ignore[reportPrivateUsage] - the iterating object
        if isinstance(fetcher, _IterableDatasetFetcher) and fetcher.auto_collation:
            raise TypeError(
                "a StreamingDataset gives whole batches, and this DataLoader would make batches of them once more: use"
                " StreamingDataLoader(dataset), or DataLoader(dataset, batch_size=None); batch sizes follow from the"
                " dataset's global_batch_size"
            )
        return WorkerIterator(self)

    def __len__(self) -> int:
        """The number of steps in an epoch; the same for every rank and number of workers."""
        return self.open().steps

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_options": {**self._options, "world": self._options["world"] or World.detect()}}

    @property
    def pads(self) -> bool:
        """Whether the last step may contain padding rows."""
        return self._options["tail"] == "pad"

    def set_epoch(self, epoch: int) -> None:
        """Moves to the start of an epoch; if the epoch is that of a state just loaded, to the saved step instead.

        If that epoch was complete when the state was saved, the next iteration is empty; see Loader.set_epoch.
        """
        epoch = check_int("epoch", epoch, 0, 1 << 64)
        position = self._position.get()
        if not (position["resumed"] and position["epoch"] == epoch):
            self._position.set(_at_begin(epoch))
        elif position["complete"]:
            self._position.set({**position, "complete": False})
            warn_nothing_left(epoch)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Moves to a saved position. The state may come from any rank, world size and number of workers.

        state: from a StreamingDataLoader, a Loader or a StatefulDataLoader. The next iteration raises StateError if it
        does not fit this dataset. The global batch size may differ if a step of the new size begins at the saved
        position.
        """
        check_state(state)
        saved = rescaled(loader_state_of(state), self._options["global_batch_size"])
        self._position.set(
            {"epoch": saved.get("epoch"), "state": saved, "resumed": True, "complete": is_complete(saved)}
        )

    def seek(self, epoch: int, state: Mapping[str, Any] | None = None) -> None:
        """Moves to the start of an epoch, or to the position of a state of this dataset."""
        self._position.set({**_at_begin(epoch), "state": state})

    def position(self) -> dict[str, Any]:
        """The position at which the next iteration begins: the epoch, and a loader state with the step (None: the first
        step)."""
        position = self._position.get()
        return (
            {**_at_begin(position["epoch"] + 1), "resumed": position["resumed"]} if position["complete"] else position
        )

    def open(self, worker: int = 0, workers: int = 1) -> Loader:
        """Creates a loader at the next iteration's position, for the steps s with s mod workers = worker."""
        own = dict(self._options)
        own.update(worker=worker, workers=workers, prefetch_bytes=max(1, own["prefetch_bytes"] // workers))
        loader = self._cache.loader(**own)
        position = self.position()
        if position["state"] is None:
            loader.set_epoch(position["epoch"])
        else:
            loader.seek(position["state"])
        return loader


class WorkerIterator:
    """Iterates over one worker's steps. Has a state of its own, for torchdata's StatefulDataLoader.

    DataLoader always asks worker 0 first. So worker w reads every M-th step, starting w steps after the iteration's
    first.
    """

    def __init__(self, dataset: StreamingDataset) -> None:
        info = get_worker_info()
        self.worker, self.workers = (0, 1) if info is None else (info.id, info.num_workers)
        self._dataset = dataset
        self._share = (self.worker + first_step(dataset.position())) % self.workers
        self.loader = dataset.open(self._share, self.workers)
        self._batches: Iterator[Batch] | None = None

    def __iter__(self) -> WorkerIterator:
        return self

    def __next__(self) -> Any:
        if self._batches is None:
            self._batches = iter(self.loader)
        return item_of(next(self._batches), pads=self._dataset.pads)

    @property
    def share(self) -> Share:
        """This worker's and rank's share of the epoch."""
        world = self.loader.world
        return Share(rank=world.rank, world=world.size, worker=self._share, workers=self.workers)

    def state_dict(self) -> dict[str, Any]:
        """The worker's loader state, and which steps it reads."""
        return {MARK: self.loader.state_dict(), "share": self._share, "workers": self.workers}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes this worker's saved state. Raises StateError if the number of workers has changed."""
        if state["workers"] != self.workers:
            raise StateError(
                f"state: workers = {state['workers']}, but this StatefulDataLoader has {self.workers}: give the state"
                " to StreamingDataset.load_state_dict, which takes it for any number of workers and ranks"
            )
        self.loader.close()
        self._share = state["share"]
        self.loader = self._dataset.open(self._share, self.workers)
        self.loader.seek(state[MARK])
        self._batches = None


def _at_begin(epoch: int) -> dict[str, Any]:
    return {"epoch": epoch, "state": None, "resumed": False, "complete": False}


def first_step(position: Mapping[str, Any]) -> int:
    """The step at which an iteration from this position begins."""
    step = (position["state"] or {}).get("next_step", 0)
    return step if isinstance(step, int) else 0  # the loader rejects other values with a message
