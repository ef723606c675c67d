# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A rank's batches, epoch by epoch: exact, elastic, resumable."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kubeflow_datacache.batch import Batch
from kubeflow_datacache.clock import Clock
from kubeflow_datacache.dataset import Dataset
from kubeflow_datacache.feed import Feed
from kubeflow_datacache.merge import Merge
from kubeflow_datacache.order import Epoch, Share, Tail
from kubeflow_datacache.progress import Progress
from kubeflow_datacache.reading import Reading
from kubeflow_datacache.state import State
from kubeflow_datacache.stats import Stats
from kubeflow_datacache.transform import Transform
from kubeflow_datacache.world import World

if TYPE_CHECKING:
    from kubeflow_datacache.cache import DataCache

_READY_SHARE = 4  # of prefetch_bytes, one part in so many is for merged batches


class Loader:
    """Iterates over this rank's batches of an epoch. Make it with DataCache.loader.

    global_batch_size: rows of a step over all ranks. Each rank gets a contiguous slice of each step; slices differ by
    at most one row, so that any world size gives the same global batches in the same order.
    seed, shuffle, clump: every epoch is a new permutation of the rows, or of runs of `clump` neighbours.
    tail: "drop" leaves the last incomplete step out, "keep" gives it short, "pad" fills it up with rows from the
    epoch's begin, which Batch.valid tells apart.
    columns: names in the order wanted, None for all. transform: a function of an Arrow record batch; what it returns is
    Batch.data. transform_threads: how many batches it works on at once; 0 for none beside the merging thread, None for
    one a CPU. Order is kept.
    prefetch_bytes: how much is read ahead: at most this and one message (about 4 MiB) a data node. More helps only
    where batches take unevenly long: memory that is used again soon is cheaper than more of it.
    world: World.detect() unless given. worker of workers: only every workers-th step, for several readers in one rank.

    Iterating goes on where the loader stands (epoch, next step) and stands at the next epoch's begin after the last
    step. One iteration at a time; a new one ends the old one.
    """

    def __init__(
        self,
        cache: DataCache,
        *,
        global_batch_size: int,
        seed: int = 0,
        shuffle: bool = True,
        clump: int = 1,
        tail: Tail = "drop",
        columns: Sequence[str] | None = None,
        transform: Callable[[pa.RecordBatch], Any] | None = None,
        transform_threads: int | None = None,
        prefetch_bytes: int = 64 << 20,
        world: World | None = None,
        worker: int = 0,
        workers: int = 1,
        progress: bool = False,
    ) -> None:
        if prefetch_bytes < 1:
            raise ValueError(f"prefetch_bytes = {prefetch_bytes}: want at least 1")
        if transform_threads is not None and transform_threads < 0:
            raise ValueError(f"transform_threads = {transform_threads}: want 0 or more, or None for one a CPU")
        self.world = world or World.detect()
        self._share = Share(rank=self.world.rank, world=self.world.size, worker=worker, workers=workers)
        self._cache = cache
        self._dataset: Dataset = cache.dataset
        self._order = Epoch(
            rows=self._dataset.rows,
            seed=seed,
            shuffle=shuffle,
            clump=clump,
            global_batch=global_batch_size,
            tail=tail,
        )
        self._columns = None if columns is None else list(columns)
        self._transform, self._threads = transform, transform_threads
        self._prefetch_bytes, self._progress = prefetch_bytes, progress
        self._step = 0
        self._resumed = self._finished = False
        self._clock = Clock()
        self._steps_given = self._rows_given = self._bytes_given = self._reconnects = 0
        self._reading: Reading | None = None
        cache.adopt(self)

    def __len__(self) -> int:
        """How many batches a whole epoch has for this reader."""
        steps, share = self._order.steps, self._share
        return len(range(share.worker, steps, share.workers))

    def __iter__(self) -> Iterator[Batch]:
        """The batches from where the loader stands to the epoch's end."""
        self.close()
        if self._finished:
            self._move(self.epoch + 1, 0)
        self._resumed = False
        return self._iterate()

    @property
    def epoch(self) -> int:
        """The epoch in which the loader stands."""
        return self._order.number

    @property
    def next_step(self) -> int:
        """The first step that has not been given out."""
        return self._step

    @property
    def steps(self) -> int:
        """How many steps an epoch has: the same for every rank."""
        return self._order.steps

    @property
    def dataset(self) -> Dataset:
        """What is read."""
        return self._dataset

    def set_epoch(self, epoch: int) -> None:
        """Goes to the begin of an epoch; just after load_state_dict, to the saved step if it is the saved epoch."""
        if self._resumed and epoch == self.epoch:
            return
        self.close()
        self._move(epoch, 0)

    def state_dict(self) -> dict[str, Any]:
        """Where training stands, as JSON-able values: the same on every rank; prefetched batches do not count."""
        order, dataset = self._order, self._dataset
        return State(
            table_uuid=dataset.table_uuid,
            snapshot=dataset.snapshot,
            fingerprint=dataset.fingerprint,
            rows=dataset.rows,
            seed=order.seed,
            shuffle=order.shuffle,
            clump=order.clump,
            global_batch_size=order.global_batch,
            tail=order.tail,
            epoch=order.number,
            next_step=self._step,
        ).as_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes to a saved place; any rank's state will do, of any world size. StateError if it does not fit."""
        saved = State(**self.state_dict()).place_of(state)
        self.close()
        self._move(saved.epoch, saved.next_step)
        self._resumed = True

    def stats(self) -> Stats:
        """Where the time went, and how much is read ahead. print() shows it as a table."""
        reading = self._reading
        raw, ready = (reading.raw(), reading.ready()) if reading is not None else ((0, 0), (0, 0))
        return Stats(
            seconds=self._clock.seconds(),
            epoch=self.epoch,
            next_step=self._step,
            steps=self._steps_given,
            rows=self._rows_given,
            bytes=self._bytes_given,
            raw_rows=raw[0],
            raw_bytes=raw[1],
            ready_rows=ready[0],
            ready_bytes=ready[1],
            reconnects=self._reconnects + (reading.reconnects if reading is not None else 0),
        )

    def close(self) -> None:
        """Ends the iteration that is under way, if any, and its streams. The loader stands where it stood."""
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.close()
            self._reconnects += reading.reconnects
            self._clock.end()

    def _move(self, epoch: int, step: int) -> None:
        self._order = self._order.numbered(epoch)
        self._step, self._finished, self._resumed = step, False, False

    def _iterate(self) -> Iterator[Batch]:
        self._clock.begin()
        transform = None if self._transform is None else Transform(self._transform, self._transform_threads())
        reading = self._reading = self._read(transform)
        bar = Progress(f"epoch {self.epoch}", self.steps, self._step) if self._progress else None
        first = self._rows_given
        try:
            for batch in reading.batches():
                if self._reading is not reading:
                    return
                self._step = batch.step + 1
                self._steps_given += 1
                self._rows_given += batch.rows
                self._bytes_given += batch.nbytes
                if bar is not None and bar.due():
                    bar.update(self._step, self._rows_given - first, self._waited())
                yield batch
            self._finished = self._reading is reading
        finally:
            if self._reading is reading:
                self.close()
            if transform is not None:
                transform.close()
            if bar is not None:
                bar.close(self._step, self._rows_given - first, self._waited())

    def _read(self, transform: Transform | None) -> Reading:
        ready = self._prefetch_bytes // _READY_SHARE
        request = self._request()

        def open_feed(step: int, stop: threading.Event) -> Feed:
            return Feed(
                self._cache,
                request,
                self._dataset,
                start_step=step,
                prefetch_bytes=self._prefetch_bytes - ready,
                stop=stop,
                clock=self._clock,
            )

        merge = Merge(self._order, self._share, open_feed, slab_bytes=max(1, ready), clock=self._clock)
        return Reading(
            self._order,
            self._share,
            merge,
            step=self._step,
            transform=transform,
            ready_bytes=ready,
            clock=self._clock,
        )

    def _request(self) -> dict[str, Any]:
        """The CMD descriptor of the epoch's share, without start_step (docs/contract.md)."""
        order, share = self._order, self._share
        request: dict[str, Any] = {
            "kind": "epoch",
            "seed": order.seed,
            "epoch": order.number,
            "shuffle": order.shuffle,
            "clump": order.clump,
            "global_batch": order.global_batch,
            "tail": order.tail,
            "rank": share.rank,
            "world": share.world,
            "worker": share.worker,
            "workers": share.workers,
        }
        if self._columns is not None:
            request["columns"] = self._columns
        return request

    def _transform_threads(self) -> int:
        return len(os.sched_getaffinity(0)) if self._threads is None else self._threads

    def _waited(self) -> float:
        seconds = self._clock.seconds()
        return 1 - seconds["consumer"] / (sum(seconds.values()) or 1.0)
