# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Loader: iterates over a rank's batches, epoch by epoch, from any saved state."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final, Unpack, cast

import pyarrow as pa

from kubeflow_datacache import fork
from kubeflow_datacache.arguments import check_int, check_state
from kubeflow_datacache.client import Source, StreamClient
from kubeflow_datacache.dataset import Dataset
from kubeflow_datacache.errors import ColumnError
from kubeflow_datacache.fetch.feed import Feed
from kubeflow_datacache.fetch.merge import Merge, RowFeed
from kubeflow_datacache.fetch.prefetch import Prefetcher
from kubeflow_datacache.fetch.take_feed import TakeFeed, TakeSource, takes
from kubeflow_datacache.host.merge import OF_RANKS, Group, HostMerge, group_of
from kubeflow_datacache.host.protocol import Start
from kubeflow_datacache.monitoring.bar import ProgressBar, progress_bar
from kubeflow_datacache.monitoring.stage_timer import StageTimer
from kubeflow_datacache.monitoring.stats import Depth, Stats
from kubeflow_datacache.notebook import html_table
from kubeflow_datacache.options import LoaderOptions, LocalRandomSeed, check_options, explicit_signature
from kubeflow_datacache.order.epoch import Epoch, Share
from kubeflow_datacache.order.local import LocalPlan, Locals
from kubeflow_datacache.order.packed import RankSteps
from kubeflow_datacache.order.plan import Plan
from kubeflow_datacache.rows.arrays import Policy
from kubeflow_datacache.rows.batch import Batch
from kubeflow_datacache.rows.block import StepBlock
from kubeflow_datacache.rows.heap import HEAP
from kubeflow_datacache.state import LoaderState, State, another_window, rescaled, warn_no_steps, warn_nothing_left
from kubeflow_datacache.stop import Stop
from kubeflow_datacache.transform import Transform
from kubeflow_datacache.world import World, check_resize

ENDED: Final = (
    "this iteration was ended, by a newer one over the same loader, or by its set_epoch, load_state_dict or close: a"
    " loader has one iteration at a time; make another loader to read twice at once"
)
# How prefetch_bytes is divided. Without a transform:
_READY_SHARE = 4  # merged batches get 1/4, received messages the rest
# With a transform:
_AHEAD_SHARE = 2  # received messages get 1/2
_MADE_SHARE = 4  # results get 1/4
_BLOCK_SHARE = 16  # a block that is being merged gets 1/16, as its results may be many times as large
# Connections of the ranks of a host to data nodes above which one reader costs less (make bench NAME=host).
_MOST_CONNECTIONS = 256
HostMade = tuple[Merge, RankSteps[Any] | None, Callable[[StepBlock], list[int]]]


class Loader:
    """Iterates over this rank's batches of an epoch. Create it with DataCache.loader.

    Takes the parameters of LoaderOptions.

    An iteration begins at the first step that has not been returned yet. If the epoch has no such step, because all
    were returned or because the loaded state was saved after the last one, the iteration begins the next epoch. So an
    iteration is empty only if epochs have no steps at all, or if set_epoch was called with a loaded epoch that was
    already complete (a warning says so). A loader has one iteration at a time: a new iteration, set_epoch,
    load_state_dict and close end the current one, and using an ended iteration raises RuntimeError.
    """

    @explicit_signature
    def __init__(self, cache: Source, **options: Unpack[LoaderOptions]) -> None:
        own = check_options(options)
        self.policy = Policy(own["null"], own["ragged"], own["cast"])
        self._world = own["world"]
        self._worker, self._workers = own["worker"], own["workers"]
        if own["filter"] is not None or own["split"] is not None:
            cache = cache.select(filter=own["filter"], split=own["split"])
        self._cache = cache
        if own["progress"] and (own["world"] or World.detect()).rank == own["worker"] == 0:
            cache.wait(progress=True, early=own["early"])
        self._columns = None if own["columns"] is None else cache.check_columns(own["columns"])
        self._check_casts(cache, own)
        self._dataset: Dataset = cache.dataset
        self._order = self._order_of(own)
        self._transform = None
        if own["transform"] is not None:
            threads, processes = own["transform_threads"], own["transform_processes"]
            self._transform = Transform(own["transform"], threads=threads, processes=processes)
        self._prefetch_bytes, self._progress = own["prefetch_bytes"], own["progress"]
        self._options = own
        self._step = 0
        self._place = (0, 0)  # of packs: the position at which the window of the next step begins, and its number there
        self._resumed = False
        self._complete = False  # the epoch has no steps left: the next iteration begins the next epoch
        self._timer = StageTimer()
        self._steps_given = self._rows_given = self._bytes_given = self._reconnects = self._shared = 0
        self._prefetcher: Prefetcher | None = None
        self._reading: World | None = None  # that of the current iteration
        self._closes = 0  # number of close() calls, to detect a close() while an iteration starts in another thread
        self._bar: ProgressBar | None = None
        self._process = os.getpid()
        cache.register(self)
        if not self._order.steps and self._worker == 0:
            warn_no_steps(self._order)

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
        shown += [("shuffle", str(order.shuffle)), ("clump", str(order.clump)), ("window", str(order.window))]
        shown.append(("tail", order.tail))
        return html_table("Loader", [*shown, ("position", f"epoch {order.number}, step {self._step} of {order.steps}")])

    def __len__(self) -> int:
        """The number of batches that this reader gets in a full epoch."""
        return len(self._steps_from(0))

    def __iter__(self) -> Iterator[Batch]:
        """The remaining batches of the current epoch, or all batches of the next epoch if none remain."""
        self._end()
        if self._complete:
            self._move(self.epoch + 1, 0)
        self._resumed = False
        return self._iterate()

    @property
    def world(self) -> World:
        """The given world, or else the one detected now."""
        return self._world or World.detect()

    @property
    def reading(self) -> World:
        """The rank and the number of ranks of the current iteration."""
        return self._reading or self.world

    @property
    def epoch(self) -> int:
        """The current epoch: that of the last returned batch, or the one that was set or loaded."""
        return self._order.number

    @property
    def next_step(self) -> int:
        """The first step that has not been returned yet."""
        return self._step

    @property
    def steps(self) -> int:
        """The number of steps in an epoch; the same for every rank."""
        return self._order.steps

    @property
    def dataset(self) -> Dataset:
        """The dataset that the loader reads."""
        return self._dataset

    def samples(self) -> Iterator[Any]:
        """Yields the rest of the epoch row by row: as dicts of Python values, or as the samples that the transform
        returns.

        A transform must return record batches, or sequences with one sample per row. A batch counts as returned after
        its last sample: a state saved earlier resumes at the batch's first row. Padding rows are skipped.
        """
        for batch in self:
            after, complete = self._step, self._complete
            self._step, self._complete = batch.step, False
            given = batch.data if batch.data is not None and not isinstance(batch.data, pa.RecordBatch) else None
            values = batch.arrow().to_pylist() if given is None else given
            if len(values) != batch.num_rows or isinstance(values, Mapping):
                raise TypeError(
                    "samples() wants a transform that gives a record batch, or a sequence of one sample a row"
                )
            yield from itertools.compress(values, batch.valid.tolist())
            if self._step == batch.step:
                self._step, self._complete = after, complete

    def set_epoch(self, epoch: int) -> None:
        """Moves to the start of an epoch; if the epoch is that of a state just loaded, to the saved step instead.

        If that epoch was complete when the state was saved, the next iteration is empty and a warning says so. Training
        loops that count epochs themselves then neither repeat nor skip steps.
        """
        epoch = check_int("epoch", epoch, 0, 1 << 64)
        if self._resumed and epoch == self.epoch:
            if self._complete:
                self._complete = False
                warn_nothing_left(epoch)
            return
        self._end()
        self._move(epoch, 0)

    def resize(self, world: World, step: int | None = None) -> None:
        """Makes this process another rank of another number of ranks, from the next batch on.

        step: the next step, counted through all epochs (epoch * steps + step); None for the step that has not been
        returned yet. Ends the current iteration, unless world and step are what they were. Any sequence of worlds gives
        every row once if the ranks of each step agree on it.
        """
        epoch, at = check_resize(world, step, self.steps) or (self.epoch, self._step)
        if world == self._reading and (epoch, at) == (self.epoch, self._step):
            return
        complete = step is None and self._complete
        self._end()
        self._world = world
        self._move(epoch, at)
        self._complete, self._resumed = complete, True

    def state_dict(self) -> dict[str, Any]:
        """The current position as JSON-serializable values, the same on every rank. Prefetched batches do not count."""
        return self._state().as_dict()

    def _state(self) -> LoaderState:
        order, dataset = self._order, self._dataset
        return State(
            order_version=order.order,
            table_uuid=dataset.table_uuid,
            snapshot=dataset.snapshot,
            filter=dataset.filter,
            row_filter=dataset.row_filter,
            split=None if dataset.split is None else asdict(dataset.split),
            fingerprint=dataset.fingerprint,
            rows=dataset.rows,
            seed=int(order.seed),
            shuffle=order.shuffle,
            clump=order.clump,
            window=order.window,
            global_batch_size=order.global_batch,
            tail=order.tail,
            epoch=order.number,
            next_step=self._step,
        )

    def load_state_dict(self, state: Mapping[str, Any], *, allow: Sequence[str] = ()) -> None:
        """Moves to a saved position. The state may come from any rank and any world size. Raises StateError if it does
        not fit. allow: ["window"] to go on with another window, which a state allows where an epoch begins or ends.

        The global batch size may differ from the saved one if a step of the new size begins at the saved position. A
        state saved after an epoch's last step resumes at the start of the next epoch (see Loader).
        """
        check_state(state)
        self.seek(another_window(state, self._order.window, allow))
        self._complete = 0 < self.steps == self._step

    def seek(self, state: Mapping[str, Any]) -> None:
        """Like load_state_dict, but if the state was saved after an epoch's last step, the next iteration is empty.

        For one of several workers, which does not know whether the other workers' steps were returned.
        """
        check_state(state)
        same = rescaled(state, self._order.global_batch)
        saved = self._state().checked_position(same, steps=self.steps)
        self._end()
        self._move(saved.epoch, saved.next_step)
        self._resumed = True

    def stats(self) -> Stats:
        """Statistics: where the time went and how much was read ahead. print() formats them as a table."""
        self._leave_parent()
        prefetcher = self._prefetcher
        raw, ready = (prefetcher.raw_depth(), prefetcher.ready_depth()) if prefetcher is not None else ((0, 0), (0, 0))
        return Stats(
            seconds=self._timer.seconds(),
            epoch=self.epoch,
            next_step=self._step,
            steps=self._steps_given,
            rows=self._rows_given,
            bytes=self._bytes_given,
            raw_queue_depth=Depth(*raw),
            prefetch_queue_depth=Depth(*ready),
            reconnects=self._reconnects + (prefetcher.reconnects if prefetcher is not None else 0),
            shared=self._shared + (prefetcher.shared if prefetcher is not None else 0),
        )

    def close(self) -> None:
        """Ends the current iteration, its streams and the transform's threads. The position stays the same."""
        self._closes += 1
        self._end()
        if self._transform is not None:
            self._transform.close()

    def _end(self) -> None:
        """Ends the current iteration, if there is one."""
        self._leave_parent()
        prefetcher, self._prefetcher, self._reading = self._prefetcher, None, None
        if prefetcher is not None:
            bar, self._bar = self._bar, None
            if bar is not None:
                bar.close(self.stats())
            prefetcher.close()
            if self._transform is not None:
                self._transform.cancel()
            self._reconnects += prefetcher.reconnects
            self._shared += prefetcher.shared
            self._timer.stop()

    def _leave_parent(self) -> None:
        """In a forked child: drops the parent's iteration, timer and transform pool.

        The parent's threads do not exist in the child, but may have held locks when it was forked.
        """
        if self._process == os.getpid():
            return
        self._process, self._prefetcher, self._bar, self._timer = os.getpid(), None, None, StageTimer()
        if self._transform is not None:
            self._transform.leave_parent()

    def _move(self, epoch: int, step: int, place: tuple[int, int] = (0, 0)) -> None:
        self._order = self._order.numbered(epoch)
        self._step, self._place, self._complete, self._resumed = step, place, False, False

    def _steps_from(self, step: int) -> range:
        """The steps of this reader from `step` to the end of the epoch."""
        return range(step + (self._worker - step) % self._workers, self.steps, self._workers)

    def _check_casts(self, cache: Source, own: Mapping[str, Any]) -> None:
        """Raises ColumnError for a column to cast that is not read. A transform may make others."""
        if own["transform"] is not None or not own["cast"]:
            return
        for name in cache.check_columns(list(own["cast"])):
            if self._columns is not None and name not in self._columns:
                raise ColumnError(f"cast: {name!r} is not among columns = {self._columns}: add it there")

    def _share_in(self, world: World) -> Share:
        return Share(rank=world.rank, world=world.size, worker=self._worker, workers=self._workers)

    def _iterate(self) -> Iterator[Batch]:
        self._leave_parent()
        process, closes = self._process, self._closes
        self._timer.start()
        share = self._share_in(self.world)
        if share.world > 1 and isinstance(self._order.seed, LocalRandomSeed):
            raise ValueError(
                f"seed = None was drawn when this process was alone, and now it is one of {share.world} ranks, which"
                " must agree: give a seed, or make the loader after torch.distributed.init_process_group"
            )
        self._reading = World(share.rank, share.world)
        prefetcher = self._prefetcher = self._read(share)
        shows = self._progress and share.rank == share.worker == 0
        bar = self._bar = progress_bar(f"epoch {self.epoch}", self.steps, self.stats()) if shows else None
        try:
            if self._closes != closes:  # close() was called before self._prefetcher was set
                raise RuntimeError(ENDED)
            for batch in prefetcher.batches():
                if self._prefetcher is not prefetcher:
                    break
                self._passed(batch)
                self._steps_given += 1
                self._rows_given += batch.num_rows
                self._bytes_given += batch.nbytes
                if bar is not None and bar.due():
                    bar.update(self.stats())
                yield batch
                if os.getpid() != process:
                    raise fork.forked_error(process)
            if self._prefetcher is not prefetcher:
                raise RuntimeError(ENDED)
            self._complete = True
        finally:
            if self._prefetcher is prefetcher:
                self._end()

    def _passed(self, batch: Batch) -> None:
        """Moves the position after a batch that is returned."""
        self._step = batch.step + 1
        self._complete = not self._steps_from(self._step)

    def _read(self, share: Share) -> Prefetcher:
        ready = block = self._prefetch_bytes // _READY_SHARE
        ahead = self._prefetch_bytes - ready
        if self._transform is not None:
            ready, block, ahead = (self._prefetch_bytes // n for n in (_MADE_SHARE, _BLOCK_SHARE, _AHEAD_SHARE))
        return Prefetcher(
            self._order,
            share,
            self.merge(share, ahead, block, group=self._group(share)),
            step=self._step,
            transform=self._transform,
            ready_bytes=ready,
            timer=self._timer,
        )

    def merge(
        self,
        share: Share,
        ahead: int,
        block: int,
        make_plan: Callable[[RowFeed], Plan] | None = None,
        group: Group | None = None,
        steps: RankSteps[Any] | None = None,
    ) -> Merge:
        """Merges a share of the current epoch, for loaders built on this one. ahead, block: limits of the bytes that
        are received ahead and of a merged block. group: the ranks of this host that read the share together. steps:
        those of the plan, where they depend on lengths."""
        # memory for rows that were read ahead, and for rows that the training loop still holds
        HEAP.keep(2 * self._prefetch_bytes)
        open_feed = functools.partial(self._open_feed, self._request(share), max(1, ahead))
        kind = Merge if group is None else functools.partial(HostMerge, group, self._place, steps)
        return kind(
            self._order,
            share,
            open_feed,
            block_bytes=max(1, block),
            timer=self._timer,
            policy=self.policy,
            make_plan=make_plan,
        )

    def merge_from(self, start: Start, *, ahead: int, block: int, parts: int) -> HostMade:
        """What reads the blocks from a place on, for the reader of a host, the steps where they depend on lengths, and
        what divides a block's rows among consecutive ranks: see HostStream.

        parts: the number of these ranks. ahead, block: as of merge. A block is as large as blocks of all ranks.
        """
        self._move(start.epoch, start.step)
        ranks = Locals(self._order, self._share_in(self.world), parts)

        def make_plan(feed: RowFeed) -> LocalPlan:
            return LocalPlan(ranks, feed.info.placement, apart=feed.apart, numbered=feed.numbered)

        merge = self.merge(ranks.share, ahead, block // parts, None if parts == 1 else make_plan)
        return merge, None, lambda rows: ranks.bounds(rows.steps[0])

    def _reader_options(self) -> dict[str, Any]:
        """The options of the loader by which a reader of the host reads the rows of this one."""
        return {name: value for name, value in self._options.items() if name not in OF_RANKS}

    def _group(self, share: Share) -> Group | None:
        """The ranks of this host with which this one reads; None to read alone."""
        if self._options["host"] == "off":
            return None
        order, world = {**self._state().as_dict(), "epoch": 0, "next_step": 0}, self.world
        required, own = self._options["host"] == "require", self._reader_options()
        parts = self._parts(world, required=required)
        source, fingerprint = self._cache, self._dataset.fingerprint
        return group_of(source, fingerprint, own, order, world, share, required=required, parts=parts)

    def _parts(self, world: World, *, required: bool) -> int:
        """Of how many consecutive ranks of this host one reader reads the rows: of all, if these would otherwise have
        many connections, or if a reader is required and no ranks have the same rows; else of one."""
        local = world.local_here()
        alone = required and world.replicas_here() == 1
        return local if alone or local * self._nodes > _MOST_CONNECTIONS else 1

    def _order_of(self, own: Mapping[str, Any]) -> Epoch:
        """The order of epoch 0 for checked options."""
        return Epoch(
            rows=self._dataset.rows,
            seed=own["seed"],
            shuffle=own["shuffle"],
            clump=own["clump"],
            window=own["window"],
            global_batch=own["global_batch_size"],
            tail=own["tail"],
            order=own["order"],
        )

    def _open_feed(self, request: Mapping[str, Any], prefetch_bytes: int, step: int, stop: Stop) -> RowFeed:
        """Opens a feed from a step on; request is that of _request."""
        (source,) = self._sources
        if self._takes(stop):
            return TakeFeed(source, prefetch_bytes=prefetch_bytes, stop=stop, timer=self._timer)
        return Feed.open(
            source.cache,
            request,
            self._dataset,
            start_step=step,
            prefetch_bytes=prefetch_bytes,
            stop=stop,
            timer=self._timer,
        )

    @functools.cached_property
    def _sources(self) -> list[TakeSource]:
        """Where rows can be requested by number: one source; of a mixture, one for each part."""
        return [TakeSource(cast("StreamClient", self._cache), self._columns, self._dataset, self._options["early"])]

    @property
    def _nodes(self) -> int:
        """The number of data nodes that have rows."""
        placements = [source.cache.described.placement for source in self._sources]
        return sum(end > start for placement in placements for start, end in placement.bounds)

    def _takes(self, stop: Stop) -> bool:
        """Whether an epoch is read by row numbers, which costs less where there are many data nodes."""
        order, nodes = self._order, self._nodes
        if not order.scattered and not any(source.cache.described.placement.scattered for source in self._sources):
            return False
        if not takes(nodes, 1.0):
            return False
        infos = [source.info(stop) for source in self._sources]
        if any(info.swept for info in infos):  # rows by number read a chunk each
            return False
        row_bytes = max(info.row_bytes for info in infos)
        return takes(nodes, row_bytes, order.clump if order.shuffle and not order.window else 1)

    def _request(self, share: Share) -> dict[str, Any]:
        """The CMD descriptor (docs/contract.md) for this share of the epoch, without start_step."""
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
        if not self._options["early"]:
            request["early"] = False
        if order.window:
            request["window"] = order.window
        if order.order != 1:
            request["order"] = order.order
        if self._columns is not None:
            request["columns"] = self._columns
        return request
