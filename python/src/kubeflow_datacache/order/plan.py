# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which rows of which data node make up the next steps, and where each of them goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kubeflow_datacache.order.epoch import Epoch, RowIndices, Share

Places = npt.NDArray[np.intp]

_AHEAD_ROWS: Final = 1 << 18  # permuted at once: few rows at a time would pay numpy's calls, not its loops
_MOST_STEPS: Final = 4096  # planned at once, where a share has few or no rows of a step
_FEW_NODES: Final = 8  # up to which looking through the rows once a node is cheaper than a search for each row


@dataclass(frozen=True)
class Run:
    """Consecutive steps of one share, `size` rows each, that are the next rows of data node `node` as they come."""

    steps: range
    size: int
    node: int


@dataclass(frozen=True)
class InterleavedRun:
    """Consecutive steps of one share, `size` rows each, from any number of data nodes.

    counts: {data node: how many of its next rows}, only nodes with rows, ascending.
    places: the row's position in the run for each of these nodes' rows laid end to end; None where they are in order.
    """

    steps: range
    size: int
    counts: dict[int, int]
    places: Places | None

    @property
    def rows(self) -> int:
        """Rows of the run."""
        return len(self.steps) * self.size


class Plan:
    """Walks the order of a share and cuts it into runs. nodes[i] = (start, end) are the rows of data node i."""

    def __init__(self, epoch: Epoch, share: Share, nodes: tuple[tuple[int, int], ...]) -> None:
        self._epoch, self._share = epoch, share
        self._ends = np.array([end for _, end in nodes], np.int64)
        owners = [i for i, (start, end) in enumerate(nodes) if end > start]
        self._only = owners[0] if len(owners) == 1 else None
        self._ahead_steps, self._ahead_rows = range(0), np.empty(0, np.int64)

    def next(self, step: int, most_rows: int) -> Run | InterleavedRun | None:
        """What comes from a step on: all steps of one node that follow each other, as far as that is plain to see,
        else an interleaved run of about most_rows rows but at least one step; None at the epoch's end.
        """
        epoch, share = self._epoch, self._share
        first = share.first_step(step)
        if first >= epoch.steps:
            return None
        span = epoch.span(first, share)
        size = span.last - span.first
        if size and (run := self._run(first, size)) is not None:
            return run
        return self._assign(self._alike(first, max(1, min(_MOST_STEPS, most_rows // max(1, size)))), size)

    def _run(self, first: int, size: int) -> Run | None:
        """The steps from `first` on that one data node has all rows of, where no permutation is needed to know."""
        epoch = self._epoch
        if self._only is not None:
            return Run(self._alike(first, epoch.steps), size, self._only)
        if epoch.shuffle:
            return None
        node = int(np.searchsorted(self._ends, epoch.span(first, self._share).first, side="right"))
        if node == len(self._ends):  # padding, which begins anew at row 0
            return None
        whole = range(first, int(self._ends[node]) // epoch.global_batch, self._share.workers)
        return Run(self._alike(first, len(whole)), size, node) if whole else None

    def _alike(self, first: int, count: int) -> range:
        """At most count steps from `first` on, of one size."""
        steps = range(first, self._epoch.steps, self._share.workers)[:count]
        return steps if self._epoch.size(steps[-1]) == self._epoch.size(first) else steps[:-1]

    def _assign(self, steps: range, size: int) -> InterleavedRun:
        if size == 0:
            return InterleavedRun(steps, size, {}, None)
        owner = self._owners(self._rows(steps, size))
        places = np.argsort(owner, kind="stable")
        nodes = np.arange(len(self._ends), dtype=owner.dtype)
        bounds = np.searchsorted(owner, nodes, side="right", sorter=places)
        tally = np.diff(bounds, prepend=0)
        counts = {node: int(tally[node]) for node in np.flatnonzero(tally).tolist()}
        seams = bounds[(bounds > 0) & (bounds < len(places))]
        laid = bool((places[seams - 1] < places[seams]).all())
        return InterleavedRun(steps, size, counts, None if laid else places)

    def _owners(self, rows: RowIndices) -> npt.NDArray[Any]:
        """Which data node has each of the rows; numpy sorts numbers of 16 bits and less by radix."""
        if len(self._ends) > _FEW_NODES:
            owner = np.searchsorted(self._ends, rows, side="right")
            return owner.astype(np.uint16) if len(self._ends) < 1 << 16 else owner
        owner = np.zeros(len(rows), np.uint8)
        for end in self._ends[:-1]:
            owner += rows >= end
        return owner

    def _rows(self, steps: range, size: int) -> RowIndices:
        """The rows of the steps, of which some more are kept for the next call."""
        if steps[0] not in self._ahead_steps or steps[-1] not in self._ahead_steps:
            ahead = len(steps) if len(steps) == 1 else max(len(steps), min(_MOST_STEPS, _AHEAD_ROWS // size))
            self._ahead_steps = self._alike(steps[0], ahead)
            self._ahead_rows = self._epoch.rows_of(self._ahead_steps, self._share)
        first = self._ahead_steps.index(steps[0]) * size
        return self._ahead_rows[first : first + len(steps) * size]
