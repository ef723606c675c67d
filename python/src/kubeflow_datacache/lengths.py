# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""LengthsLoader: what loaders have in common whose steps depend on the lengths of rows."""

from __future__ import annotations

import os
from typing import Any

from kubeflow_datacache.fetch.merge import Merge, RowFeed
from kubeflow_datacache.fetch.prefetch import Prefetcher
from kubeflow_datacache.host.merge import Group
from kubeflow_datacache.host.protocol import Start
from kubeflow_datacache.loader import HostMade, Loader
from kubeflow_datacache.order.epoch import Epoch, Share
from kubeflow_datacache.order.packed import RankSteps, StepsPlan
from kubeflow_datacache.rows.batch import Batch
from kubeflow_datacache.rows.block import StepBlock
from kubeflow_datacache.stop import Stop
from kubeflow_datacache.world import World

# Parts of prefetch_bytes: received rows, batches, and lengths that were read ahead.
_ROWS_SHARE, _READY_SHARE, _LENGTHS_SHARE = 2, 4, 8


class LengthsLoader(Loader):
    """A Loader that also reads the lengths of all rows, in the order of the epoch, and requests its rows by number."""

    _lengths: Merge | None = None  # of the current iteration

    def _rows_of(self, **options: Any) -> Loader:
        """A loader of the same rows with other options."""
        return Loader(self._cache, **options)

    def _read_lengths(self, column: str) -> Merge:
        """Reads the lengths of a column, row by row."""
        order, ahead = self._order, max(1, self._prefetch_bytes // _LENGTHS_SHARE)
        own: dict[str, Any] = {"seed": order.seed, "shuffle": order.shuffle, "clump": order.clump}
        own["window"] = order.window
        reader = self._rows_of(
            columns=[f"length({column})"], global_batch_size=1, tail="keep", prefetch_bytes=ahead, **own
        )
        reader.set_epoch(order.number)
        return reader.merge(Share(), ahead, ahead)

    def _rank_steps(self, share: Share) -> RankSteps[Any]:
        """A rank's steps from the current place on."""
        raise NotImplementedError

    def _batch(self, origin: tuple[Epoch, Share], own: Any, *place: Any) -> Batch:
        """The batch of a step. place: its block, its index there, and its number."""
        raise NotImplementedError

    def _read(self, share: Share) -> Prefetcher:
        order, steps, ready = self._order, self._rank_steps(share), max(1, self._prefetch_bytes // _READY_SHARE)
        merge = self._merge_steps(share, steps, self._prefetch_bytes // _ROWS_SHARE, ready, self._group(share))

        def make(block: StepBlock, index: int, step: int) -> Batch:
            return self._batch((order, share), steps.pop(step), block, index, step)

        return Prefetcher(
            order, share, merge, step=self._step, transform=None, ready_bytes=ready, timer=self._timer, make=make
        )

    def merge_from(self, start: Start, *, ahead: int, block: int, parts: int) -> HostMade:
        """See Loader.merge_from. parts is 1."""
        assert parts == 1
        self._move(start.epoch, start.step, (start.position, start.number))
        share = self._share_in(self.world)
        steps = self._rank_steps(share)
        return self._merge_steps(share, steps, ahead, block, None), steps, lambda rows: [0, rows.size]

    def _parts(self, world: World, *, required: bool) -> int:
        return 1  # consecutive ranks have rows from everywhere in a step

    def _merge_steps(self, share: Share, steps: RankSteps[Any], ahead: int, block: int, group: Group | None) -> Merge:
        order = self._order

        def make_plan(feed: RowFeed) -> StepsPlan[Any]:
            return StepsPlan(order, share, feed.info.placement, steps)

        return self.merge(share, ahead, block, make_plan, group, steps)

    def _takes(self, stop: Stop) -> bool:
        return True

    def _end(self) -> None:
        self._leave_parent()
        if self._lengths is not None:
            self._lengths.stop()
            self._lengths = None
        super()._end()

    def _leave_parent(self) -> None:
        if self._process != os.getpid():
            self._lengths = None  # its connections are the parent's
        super()._leave_parent()
