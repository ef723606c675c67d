# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A rank's batches, epoch by epoch: exact, elastic, resumable."""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, Final, Unpack

import pyarrow as pa

from kubeflow_datacache import fork
from kubeflow_datacache.client import Client
from kubeflow_datacache.dataset import Dataset
from kubeflow_datacache.flow.feed import Feed
from kubeflow_datacache.flow.merge import Merge
from kubeflow_datacache.flow.reading import Reading
from kubeflow_datacache.options import DrawnAlone, LoaderOptions, checked, spelled_out, whole
from kubeflow_datacache.order.epoch import Epoch, Share
from kubeflow_datacache.rows.arrays import Policy
from kubeflow_datacache.rows.batch import Batch
from kubeflow_datacache.rows.heap import HEAP
from kubeflow_datacache.state import State, rescaled, warn_nothing_left
from kubeflow_datacache.stop import Stop
from kubeflow_datacache.transform import Transform
from kubeflow_datacache.watch.bar import Bar, bar_of
from kubeflow_datacache.watch.clock import Clock
from kubeflow_datacache.watch.html import as_table
from kubeflow_datacache.watch.stats import Depth, Stats
from kubeflow_datacache.world import World

ENDED: Final = (
    "this iteration was ended, by a newer one over the same loader, or by its set_epoch, load_state_dict or close: a"
    " loader has one iteration at a time; make another loader to read twice at once"
)
# Of prefetch_bytes, one part in so many is for merged batches; the rest is for messages. With a transform, whose
# results may be many times as large as the rows: for messages, for results, and for each of the slabs that are being
# merged, of which the parts are held besides, and that are being transformed.
_READY_SHARE = 4
_AHEAD_SHARE, _MADE_SHARE, _SLAB_SHARE = 2, 4, 16


class Loader:
    """Iterates over this rank's batches of an epoch. Make it with DataCache.loader.

    Takes the parameters of LoaderOptions.

    An iteration begins at the next step that was not given out. Where no step of the epoch is left, because all were
    given out or because a state saved after the last one was loaded, it begins the next epoch: an iteration is empty
    only if epochs have no steps, or if set_epoch named the epoch whose end was loaded (a warning says so). One
    iteration at a time: a new one, set_epoch, load_state_dict and close end it, and asking it for more is an error.
    """

    @spelled_out
    def __init__(self, cache: Client, **options: Unpack[LoaderOptions]) -> None:
        own = checked(options)
        self.policy = Policy(own["null"], own["ragged"])
        self._world = own["world"]
        self._worker, self._workers = own["worker"], own["workers"]
        self._cache = cache
        if own["progress"] and (own["world"] or World.detect()).rank == own["worker"] == 0:
            cache.wait(progress=True)
        self._columns = None if own["columns"] is None else cache.named(own["columns"])
        self._dataset: Dataset = cache.dataset
        self._order = Epoch(
            rows=self._dataset.rows,
            seed=own["seed"],
            shuffle=own["shuffle"],
            clump=own["clump"],
            global_batch=own["global_batch_size"],
            tail=own["tail"],
        )
        self._transform = None
        if own["transform"] is not None:
            threads, processes = own["transform_threads"], own["transform_processes"]
            self._transform = Transform(own["transform"], threads=threads, processes=processes)
        self._prefetch_bytes, self._progress = own["prefetch_bytes"], own["progress"]
        self._step = 0
        self._resumed = False
        self._complete = False  # no step of the epoch is left: the next iteration begins the next epoch
        self._clock = Clock()
        self._steps_given = self._rows_given = self._bytes_given = self._reconnects = 0
        self._reading: Reading | None = None
        self._closes = 0  # calls of close(), for an iteration that begins in another thread
        self._bar: Bar | None = None
        self._process = os.getpid()
        cache.register(self)
        if not self.steps and self._worker == 0:
            _warn_no_steps(self._order)

    def __repr__(self) -> str:
        order = self._order
        return (
            f"Loader({self._cache.endpoint!r}, global_batch_size={order.global_batch}, seed={order.seed},"
            f" shuffle={order.shuffle}; epoch {order.number}, step {self._step} of {order.steps})"
        )

    def _repr_html_(self) -> str:
        order = self._order
        shown = [
            ("rows", f"{order.rows:,}"),
            ("global_batch_size", f"{order.global_batch:,}"),
            ("seed", str(order.seed)),
        ]
        shown += [("shuffle", str(order.shuffle)), ("clump", str(order.clump)), ("tail", order.tail)]
        return as_table("Loader", [*shown, ("stands at", f"epoch {order.number}, step {self._step} of {order.steps}")])

    def __len__(self) -> int:
        """How many batches a whole epoch has for this reader."""
        return len(self._steps_from(0))

    def __iter__(self) -> Iterator[Batch]:
        """The batches from where the loader stands to the epoch's end; of the next epoch where none is left."""
        self._end()
        if self._complete:
            self._move(self.epoch + 1, 0)
        self._resumed = False
        return self._iterate()

    @property
    def world(self) -> World:
        """Whose rows are read: the world that was given, else the one that is detected now."""
        return self._world or World.detect()

    @property
    def epoch(self) -> int:
        """The epoch in which the loader stands: that of the batch given out last, or the one that was set or loaded."""
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

    def samples(self) -> Iterator[Any]:
        """The rest of the epoch row by row: dictionaries of Python values, or the samples that the transform gives.

        A transform may give record batches or sequences of one sample a row. A batch counts as given out after its last
        sample: a state that is saved before goes on at the batch's first row. Padded rows are left out.
        """
        for batch in self:
            after, complete = self._step, self._complete
            self._step, self._complete = batch.step, False
            given = batch.data if batch.data is not None and not isinstance(batch.data, pa.RecordBatch) else None
            values = batch.arrow().to_pylist() if given is None else given
            if len(values) != batch.rows or isinstance(values, Mapping):
                raise TypeError(
                    "samples() wants a transform that gives a record batch, or a sequence of one sample a row"
                )
            yield from itertools.compress(values, batch.valid.tolist())
            if self._step == batch.step:
                self._step, self._complete = after, complete

    def set_epoch(self, epoch: int) -> None:
        """Goes to the begin of an epoch; just after load_state_dict, to the saved step if it is the saved epoch.

        If that epoch was complete when the state was saved, the next iteration is empty, since none of its steps is
        left, and a warning says so: training loops that count epochs by themselves then repeat and leave out nothing.
        """
        epoch = whole("epoch", epoch, 0, 1 << 64)
        if self._resumed and epoch == self.epoch:
            if self._complete:
                self._complete = False
                warn_nothing_left(epoch)
            return
        self._end()
        self._move(epoch, 0)

    def state_dict(self) -> dict[str, Any]:
        """Where training stands, as JSON-able values: the same on every rank; prefetched batches do not count."""
        order, dataset = self._order, self._dataset
        return State(
            table_uuid=dataset.table_uuid,
            snapshot=dataset.snapshot,
            filter=dataset.filter,
            fingerprint=dataset.fingerprint,
            rows=dataset.rows,
            seed=int(order.seed),
            shuffle=order.shuffle,
            clump=order.clump,
            global_batch_size=order.global_batch,
            tail=order.tail,
            epoch=order.number,
            next_step=self._step,
        ).as_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes to a saved place; any rank's state will do, of any world size. StateError if it does not fit.

        The global batch size may be another one than when it was saved, if a step of it begins at that place.

        A state that was saved after an epoch's last step stands where the next epoch begins, see Loader.
        """
        self.stand(state)
        self._complete = 0 < self.steps == self._step

    def stand(self, state: Mapping[str, Any]) -> None:
        """As load_state_dict, but after an epoch's last step the next iteration is empty.

        For one of several workers, which can't tell whether the other ones' steps were given out.
        """
        same = rescaled(state, self._order.global_batch)
        saved = State(**self.state_dict()).place_of(same, steps=self.steps)
        self._end()
        self._move(saved.epoch, saved.next_step)
        self._resumed = True

    def stats(self) -> Stats:
        """Where the time went, and how much is read ahead. print() shows it as a table."""
        self._leave_parent()
        reading = self._reading
        raw, ready = (reading.raw(), reading.ready()) if reading is not None else ((0, 0), (0, 0))
        return Stats(
            seconds=self._clock.seconds(),
            epoch=self.epoch,
            next_step=self._step,
            steps=self._steps_given,
            rows=self._rows_given,
            bytes=self._bytes_given,
            raw_queue_depth=Depth(*raw),
            prefetch_queue_depth=Depth(*ready),
            reconnects=self._reconnects + (reading.reconnects if reading is not None else 0),
        )

    def close(self) -> None:
        """Ends what runs: an iteration, its streams, the transform's threads. The loader stands where it stood."""
        self._closes += 1
        self._end()
        if self._transform is not None:
            self._transform.close()

    def _end(self) -> None:
        """Ends the iteration that is under way, if any."""
        self._leave_parent()
        reading, self._reading = self._reading, None
        if reading is not None:
            bar, self._bar = self._bar, None
            if bar is not None:
                bar.close(self.stats())
            reading.close()
            if self._transform is not None:
                self._transform.cancel()
            self._reconnects += reading.reconnects
            self._clock.end()

    def _leave_parent(self) -> None:
        """In a forked child: drops the iteration under way, the clock and the transform's pool, which are the parent's.

        Their threads are there, and may have held their locks.
        """
        if self._process == os.getpid():
            return
        self._process, self._reading, self._bar, self._clock = os.getpid(), None, None, Clock()
        if self._transform is not None:
            self._transform.leave_parent()

    def _move(self, epoch: int, step: int) -> None:
        self._order = self._order.numbered(epoch)
        self._step, self._complete, self._resumed = step, False, False

    def _steps_from(self, step: int) -> range:
        """The steps of an epoch that this reader has, from one on."""
        return range(step + (self._worker - step) % self._workers, self.steps, self._workers)

    def _share_in(self, world: World) -> Share:
        return Share(rank=world.rank, world=world.size, worker=self._worker, workers=self._workers)

    def _iterate(self) -> Iterator[Batch]:
        self._leave_parent()
        process, closes = self._process, self._closes
        self._clock.begin()
        share = self._share_in(self.world)
        if share.world > 1 and isinstance(self._order.seed, DrawnAlone):
            raise ValueError(
                f"seed = None was drawn when this process was alone, and now it is one of {share.world} ranks, which"
                " must agree: give a seed, or make the loader after torch.distributed.init_process_group"
            )
        reading = self._reading = self._read(share)
        shows = self._progress and share.rank == share.worker == 0
        bar = self._bar = bar_of(f"epoch {self.epoch}", self.steps, self.stats()) if shows else None
        try:
            if self._closes != closes:  # before close() could see this reading
                raise RuntimeError(ENDED)
            for batch in reading.batches():
                if self._reading is not reading:
                    break
                self._step = batch.step + 1
                self._complete = not self._steps_from(self._step)
                self._steps_given += 1
                self._rows_given += batch.rows
                self._bytes_given += batch.nbytes
                if bar is not None and bar.due():
                    bar.update(self.stats())
                yield batch
                if os.getpid() != process:
                    raise fork.error(process)
            if self._reading is not reading:
                raise RuntimeError(ENDED)
            self._complete = True
        finally:
            if self._reading is reading:
                self._end()

    def _read(self, share: Share) -> Reading:
        ready = slab = self._prefetch_bytes // _READY_SHARE
        ahead = self._prefetch_bytes - ready
        if self._transform is not None:
            ready, slab, ahead = (self._prefetch_bytes // n for n in (_MADE_SHARE, _SLAB_SHARE, _AHEAD_SHARE))
        HEAP.keep(2 * self._prefetch_bytes)  # what is read ahead, and what the training still holds
        request = self._request(share)

        def open_feed(step: int, stop: Stop) -> Feed:
            return Feed(
                self._cache,
                request,
                self._dataset,
                start_step=step,
                prefetch_bytes=max(1, ahead),
                stop=stop,
                clock=self._clock,
            )

        merge = Merge(self._order, share, open_feed, slab_bytes=max(1, slab), clock=self._clock, policy=self.policy)
        return Reading(
            self._order,
            share,
            merge,
            step=self._step,
            transform=self._transform,
            ready_bytes=ready,
            clock=self._clock,
        )

    def _request(self, share: Share) -> dict[str, Any]:
        """The CMD descriptor of the epoch's share, without start_step (docs/contract.md)."""
        order = self._order
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


def _warn_no_steps(order: Epoch) -> None:
    """Warns that epochs will be empty; Python's own filter shows the same warning once."""
    if order.rows:
        why = (
            f"global_batch_size = {order.global_batch} is more than the {order.rows} rows of the table, and"
            f' tail="drop" leaves the incomplete step out: give a global_batch_size of at most {order.rows}, or'
            ' tail="keep" or "pad"'
        )
    else:
        why = "the cache serves a table without rows: see its filter and snapshot"
    warnings.warn(f"every epoch of this loader is empty: {why}", stacklevel=3)
