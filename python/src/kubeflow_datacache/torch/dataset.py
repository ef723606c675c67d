# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A cache's rows as an iterable-style torch dataset."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, Unpack

from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils.fetch import _IterableDatasetFetcher  # pyright: ignore[reportPrivateUsage]

from kubeflow_datacache.cache import DataCache
from kubeflow_datacache.errors import StateError
from kubeflow_datacache.loader import Loader
from kubeflow_datacache.options import LoaderOptions, checked, spelled_out, whole
from kubeflow_datacache.order.epoch import Share
from kubeflow_datacache.rows.batch import Batch
from kubeflow_datacache.state import is_complete, rescaled, warn_nothing_left
from kubeflow_datacache.torch.batch import item_of
from kubeflow_datacache.torch.cell import Cell
from kubeflow_datacache.torch.stateful import MARK, place_of
from kubeflow_datacache.world import World


class StreamingDataset(IterableDataset[Any]):
    """This rank's batches of an epoch, as TensorBatch, or as what the transform makes of the rows.

    Takes the parameters of LoaderOptions, without worker and workers. Give it to StreamingDataLoader; or to torch's
    DataLoader or torchdata's StatefulDataLoader with batch_size=None, as it batches by itself. Any number of workers
    gives the same batches in the same order: worker w of M reads every M-th step; prefetch_bytes is shared out among
    the workers.

    Iterating begins where set_epoch or load_state_dict put the dataset, also in persistent workers. As with torch's
    DistributedSampler, call set_epoch before each epoch: with workers in between, a dataset can't tell how far the
    training came. StreamingDataLoader can, and moves on by itself.

    Connects where it is iterated, never in a main process that only passes it to workers, so that these may be forked.
    len() asks the head, which connects this process: workers can't be forked then. Pickles; world is detected when a
    worker is started or an iteration begins, unless given.
    """

    @spelled_out
    def __init__(self, cache: DataCache, **options: Unpack[LoaderOptions]) -> None:
        for name in ("worker", "workers"):
            if name in options:
                raise TypeError(f"{name} is no parameter of a StreamingDataset: the DataLoader says which worker reads")
        self._cache, self._options = cache, checked(options)
        self._place = Cell(_at_begin(0))

    def __iter__(self) -> Stream:
        fetcher = sys._getframe(1).f_locals.get("self")  # pyright: ignore[reportPrivateUsage] - who asks for batches
        if isinstance(fetcher, _IterableDatasetFetcher) and fetcher.auto_collation:
            raise TypeError(
                "a StreamingDataset gives whole batches, and this DataLoader would make batches of them once more: use"
                " StreamingDataLoader(dataset), or DataLoader(dataset, batch_size=None); batch sizes follow from the"
                " dataset's global_batch_size"
            )
        return Stream(self)

    def __len__(self) -> int:
        """How many steps a whole epoch has: the same for every rank and number of workers."""
        return self.open().steps

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_options": {**self._options, "world": self._options["world"] or World.detect()}}

    @property
    def pads(self) -> bool:
        """Whether the last step may hold rows that don't count."""
        return self._options["tail"] == "pad"

    def set_epoch(self, epoch: int) -> None:
        """Goes to the begin of an epoch; after load_state_dict, to the saved step if it is the saved epoch.

        If that epoch was complete when the state was saved, the next iteration is empty, see Loader.set_epoch.
        """
        epoch = whole("epoch", epoch, 0, 1 << 64)
        place = self._place.get()
        if not (place["resumed"] and place["epoch"] == epoch):
            self._place.set(_at_begin(epoch))
        elif place["complete"]:
            self._place.set({**place, "complete": False})
            warn_nothing_left(epoch)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes to a saved place, of any rank, world size and number of workers.

        state: of a StreamingDataLoader, a Loader or a StatefulDataLoader. The next iteration raises StateError if it
        does not fit this dataset. The global batch size may be another one, if a step of it begins at that place.
        """
        saved = rescaled(place_of(state), self._options["global_batch_size"])
        self._place.set({"epoch": saved.get("epoch"), "state": saved, "resumed": True, "complete": is_complete(saved)})

    def stand(self, epoch: int, state: Mapping[str, Any] | None = None) -> None:
        """Goes to the begin of an epoch, or to the place of this dataset's own state."""
        self._place.set({**_at_begin(epoch), "state": state})

    def place(self) -> dict[str, Any]:
        """Where the next iteration begins: epoch, and the state that fixes the step, None for the epoch's begin."""
        place = self._place.get()
        return {**_at_begin(place["epoch"] + 1), "resumed": place["resumed"]} if place["complete"] else place

    def open(self, worker: int = 0, workers: int = 1) -> Loader:
        """A new loader of the steps s with s mod workers = worker, where the next iteration begins."""
        own = dict(self._options)
        own.update(worker=worker, workers=workers, prefetch_bytes=max(1, own["prefetch_bytes"] // workers))
        loader = self._cache.loader(**own)
        place = self.place()
        if place["state"] is None:
            loader.set_epoch(place["epoch"])
        else:
            loader.stand(place["state"])
        return loader


class Stream:
    """One worker's part of an iteration, with a state of its own for torchdata's StatefulDataLoader.

    DataLoader asks worker 0 first wherever an iteration begins: so worker w has every M-th step from the w-th on.
    """

    def __init__(self, dataset: StreamingDataset) -> None:
        info = get_worker_info()
        self.worker, self.workers = (0, 1) if info is None else (info.id, info.num_workers)
        self._dataset = dataset
        self._share = (self.worker + first_step(dataset.place())) % self.workers
        self.loader = dataset.open(self._share, self.workers)
        self._batches: Iterator[Batch] | None = None

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Any:
        if self._batches is None:
            self._batches = iter(self.loader)
        return item_of(next(self._batches), pads=self._dataset.pads)

    @property
    def share(self) -> Share:
        """The steps that this worker reads, and its rank's part of each."""
        world = self.loader.world
        return Share(rank=world.rank, world=world.size, worker=self._share, workers=self.workers)

    def state_dict(self) -> dict[str, Any]:
        """What this worker has given, and which steps are its."""
        return {MARK: self.loader.state_dict(), "share": self._share, "workers": self.workers}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes to where this worker stood; StateError if there were more or fewer workers."""
        if state["workers"] != self.workers:
            raise StateError(
                f"state: workers = {state['workers']}, but this StatefulDataLoader has {self.workers}: give the state"
                " to StreamingDataset.load_state_dict, which takes it for any number of workers and ranks"
            )
        self.loader.close()
        self._share = state["share"]
        self.loader = self._dataset.open(self._share, self.workers)
        self.loader.stand(state[MARK])
        self._batches = None


def _at_begin(epoch: int) -> dict[str, Any]:
    return {"epoch": epoch, "state": None, "resumed": False, "complete": False}


def first_step(place: Mapping[str, Any]) -> int:
    """The step at which an iteration from a place begins."""
    step = (place["state"] or {}).get("next_step", 0)
    return step if isinstance(step, int) else 0  # what is no step, the loader refuses by name
