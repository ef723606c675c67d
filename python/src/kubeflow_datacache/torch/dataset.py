# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""StreamingDataset: a cache's rows as an iterable-style torch dataset."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final, Unpack

import torch
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
from kubeflow_datacache.torch.accelerate import refuse_division
from kubeflow_datacache.torch.batch import cast_item, item_of
from kubeflow_datacache.torch.shared_value import SharedValue
from kubeflow_datacache.torch.torchdata_state import MARK, loader_state_of
from kubeflow_datacache.world import World

_MOST_WORKERS: Final = 1024


class StreamingDataset(IterableDataset[Any]):
    """This rank's batches of an epoch of a cache or a Mixture, as TensorBatch or as the transform's results.

    Takes the parameters of LoaderOptions, except worker and workers. Use it with StreamingDataLoader, or with torch's
    DataLoader or torchdata's StatefulDataLoader and batch_size=None, as it returns whole batches. Any number of workers
    gives the same batches in the same order: worker w of M reads every M-th step, and the workers share prefetch_bytes.

    An iteration begins at the position of the last set_epoch or load_state_dict, also in persistent workers. After one
    that was read to its last batch, the next iteration begins the next epoch; after one that was not, the same epoch
    again, as a dataset read by workers does not know how far the training has come. StreamingDataLoader knows, and goes
    on.

    Connects in the process that iterates. A main process that only passes the dataset to workers does not connect, so
    workers may be forked; len() connects, and workers cannot be forked after that. Picklable. The world is detected
    when a worker or an iteration starts, unless it is given.
    """

    @explicit_signature
    def __init__(self, cache: DataCache | Mixture, **options: Unpack[LoaderOptions]) -> None:
        for name in ("worker", "workers"):
            if name in options:
                raise TypeError(f"{name} is no parameter of a StreamingDataset: the DataLoader says which worker reads")
        for name in ("pack", "balance"):
            if name in options:
                raise TypeError(
                    f"{name} is no parameter of a StreamingDataset, whose workers would each read all lengths: iterate"
                    f" over cache.loader({name}=...), which reads ahead in threads"
                )
        self._cache, self._options = cache, check_options(options)
        self._position = SharedValue({**_at_begin(0), "world": None})
        # for each worker, the epoch after the last one whose batches it has given completely since the position was set
        self._next_epochs = torch.zeros(_MOST_WORKERS, dtype=torch.int64).share_memory_()

    def __iter__(self) -> WorkerIterator:
        fetcher = sys._getframe(1).f_locals.get("self")  # pyright: ignore[reportPrivateUsage] - the iterating object
        if isinstance(fetcher, _IterableDatasetFetcher) and fetcher.auto_collation:
            raise TypeError(
                "a StreamingDataset gives whole batches, and this DataLoader would make batches of them once more: use"
                " StreamingDataLoader(dataset), or DataLoader(dataset, batch_size=None); batch sizes follow from the"
                " dataset's global_batch_size"
            )
        return WorkerIterator(self, follow=True)

    def __len__(self) -> int:
        """The number of steps in an epoch; the same for every rank and number of workers."""
        return self.open(0, 1, self.position()).steps

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_options": {**self._options, "world": self._options["world"] or World.detect()}}

    @property
    def pads(self) -> bool:
        """Whether the last step may contain padding rows."""
        return self._options["tail"] == "pad"

    @property
    def casts(self) -> Mapping[str, str]:
        """The option cast."""
        return self._options["cast"]

    @property
    def world(self) -> World:
        """The rank and the number of ranks of the next iteration."""
        moved = self._position.get()["world"]
        return World(*moved) if moved is not None else self._options["world"] or World.detect()

    def set_epoch(self, epoch: int) -> None:
        """Moves to the start of an epoch; if the epoch is that of a state just loaded, to the saved step instead.

        If that epoch was complete when the state was saved, the next iteration is empty; see Loader.set_epoch.
        """
        refuse_division(self)  # Accelerate's data loaders call this before each iteration
        epoch = check_int("epoch", epoch, 0, 1 << 64)
        position = self._position.get()
        if not (position["resumed"] and position["epoch"] == epoch):
            position = _at_begin(epoch)
        elif position["complete"]:
            position["complete"] = False
            warn_nothing_left(epoch)
        self._move(position)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Moves to a saved position. The state may come from any rank, world size and number of workers.

        state: from a StreamingDataLoader, a Loader or a StatefulDataLoader. The next iteration raises StateError if it
        does not fit this dataset. The global batch size may differ if a step of the new size begins at the saved
        position.
        """
        check_state(state)
        saved = rescaled(loader_state_of(state), self._options["global_batch_size"])
        self._move(
            {**_at_begin(saved.get("epoch", 0)), "state": saved, "resumed": True, "complete": is_complete(saved)}
        )

    def seek(self, epoch: int, state: Mapping[str, Any] | None = None, *, blanks: int = 0) -> None:
        """Moves to the start of an epoch, or to the position of a state of this dataset.

        blanks: how many items, None, the next iteration of a DataLoader returns first, for a framework that drops them
        to get to its place.
        """
        self._move({**_at_begin(epoch), "state": state, "blanks": blanks})

    def resize(self, world: World, state: Mapping[str, Any]) -> None:
        """Moves to the position of a state, as another rank of another number of ranks."""
        self._move(
            {**_at_begin(state["epoch"]), "state": state, "complete": is_complete(state), "resumed": True}, world
        )

    def position(self, workers: int = 0) -> dict[str, Any]:
        """The position at which the next iteration begins: the epoch, and a loader state with the step (None: the first
        step). workers: those whose epochs follow each other."""
        position = self._position.get()
        if workers and (following := int(self._next_epochs[:workers].min())):
            return {**position, **_at_begin(following)}
        if not position["complete"]:
            return position
        return {**position, **_at_begin(position["epoch"] + 1), "resumed": position["resumed"]}

    def ended(self, worker: int, epoch: int) -> None:
        """Records that a worker gave its last batch of an epoch."""
        if worker < _MOST_WORKERS:
            self._next_epochs[worker] = epoch + 1

    def _move(self, position: dict[str, Any], world: World | None = None) -> None:
        kept = self._position.get()["world"] if world is None else [world.rank, world.size]
        self._position.set({**position, "world": kept})
        self._next_epochs.zero_()

    def open(self, worker: int, workers: int, position: Mapping[str, Any]) -> Loader:
        """Creates a loader at a position, for the steps s with s mod workers = worker."""
        own = dict(self._options)
        own.update(worker=worker, workers=workers, prefetch_bytes=max(1, own["prefetch_bytes"] // workers))
        if position["world"] is not None:
            own["world"] = World(*position["world"])
        loader = self._cache.loader(**own)
        if position["state"] is None:
            loader.set_epoch(position["epoch"])
        else:
            loader.seek(position["state"])
        return loader


class WorkerIterator:
    """Iterates over one worker's steps. Has a state of its own, for torchdata's StatefulDataLoader.

    DataLoader always asks worker 0 first. So worker w reads every M-th step, starting w steps after the iteration's
    first. follow: whether the iteration after one that was read to its end reads the next epoch.
    """

    def __init__(self, dataset: StreamingDataset, *, follow: bool = False) -> None:
        info = get_worker_info()
        self.worker, self.workers = (0, 1) if info is None else (info.id, info.num_workers)
        self._dataset = dataset
        position = dataset.position(self.workers if follow else 0)
        blanks = position["blanks"]
        self._blanks = len(range(self.worker, blanks, self.workers))
        self._share = (self.worker + first_step(position) - blanks) % self.workers
        self.loader = dataset.open(self._share, self.workers, position)
        self._batches: Iterator[Batch] | None = None

    def __iter__(self) -> WorkerIterator:
        return self

    def __next__(self) -> Any:
        if self._blanks:
            self._blanks -= 1
            return None
        if self._batches is None:
            self._batches = iter(self.loader)
        batch = next(self._batches, None)
        # Lightning counts the batches of an epoch, and does not ask for one more.
        if batch is None or batch.step + self.workers >= self.loader.steps:
            self._dataset.ended(self.worker, self.loader.epoch)
        if batch is None:
            raise StopIteration
        return cast_item(item_of(batch, pads=self._dataset.pads), self._dataset.casts)

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
        self.loader = self._dataset.open(self._share, self.workers, self._dataset.position())
        self.loader.seek(state[MARK])
        self._batches = None


def _at_begin(epoch: int) -> dict[str, Any]:
    return {"epoch": epoch, "state": None, "resumed": False, "complete": False, "blanks": 0}


def first_step(position: Mapping[str, Any]) -> int:
    """The step at which an iteration from this position begins."""
    step = (position["state"] or {}).get("next_step", 0)
    return step if isinstance(step, int) else 0  # the loader rejects other values with a message
