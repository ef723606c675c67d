# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Plan: which rows of which data node make up the next steps, and where each row goes."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kubeflow_datacache.order.epoch import Epoch, RowIndices, Share
from kubeflow_datacache.order.split import Placement

Destinations = npt.NDArray[np.intp]

_AHEAD_ROWS: Final = 1 << 18  # number of rows permuted at once, so that numpy's cost per call is small
_MOST_STEPS: Final = 4096  # limit of steps planned at once, for shares with few or no rows per step
_FEW_NODES: Final = 8  # up to this number of nodes, one comparison per node is faster than a search per row
_RANGES: Final = 8  # ranges per node in the table of a search
_MOST_CORRECTIONS: Final = 4  # more cost as much as a binary search


@dataclass(frozen=True)
class Run:
    """Consecutive steps of one share, `size` rows each. Their rows are the next rows that data node `node` sends, in
    order."""

    steps: range
    size: int
    node: int


@dataclass(frozen=True)
class InterleavedRun:
    """Consecutive steps of one share, `size` rows each, from any number of data nodes.

    counts: {data node: number of its next rows to take}, ascending, without nodes that have none. destinations[i]: the
    position in the run of the i-th taken row, counting the nodes' rows in the order of counts; None if the rows are in
    order already. numbers: those of the taken rows, if the plan was asked for them.
    """

    steps: range
    size: int
    counts: dict[int, int]
    destinations: Destinations | None
    numbers: RowIndices | None = None

    @property
    def rows(self) -> int:
        """The number of rows in the run."""
        return len(self.steps) * self.size

    @property
    def numbers_by_node(self) -> dict[int, RowIndices]:
        """The numbers of the rows to take from each data node."""
        assert self.numbers is not None
        ends = itertools.accumulate(self.counts.values())
        return {node: self.numbers[end - self.counts[node] : end] for node, end in zip(self.counts, ends, strict=True)}


class _Search:
    """Finds the node of each number: looks it up in a table of equal ranges, and corrects it for the nodes' ends within
    a range. Faster than a binary search if nodes have about as many rows each."""

    def __init__(self, ends: RowIndices) -> None:
        self._dtype = np.uint16 if len(ends) < 1 << 16 else np.int64
        self._ends = ends
        self._shift = max(0, (int(ends[-1]) // (_RANGES * len(ends))).bit_length() - 1)
        begins = np.arange((int(ends[-1]) >> self._shift) + 1, dtype=np.int64) << self._shift
        first = np.searchsorted(ends, begins, side="right")
        self._table = np.minimum(first, len(ends) - 1).astype(self._dtype)
        self._corrections = int(np.diff(first, append=len(ends)).max())

    def owners(self, numbers: RowIndices) -> npt.NDArray[Any]:
        """The node of each number."""
        if self._corrections > _MOST_CORRECTIONS:
            return np.searchsorted(self._ends, numbers, side="right").astype(self._dtype)
        owner = self._table.take(numbers >> self._shift)
        for _ in range(self._corrections):
            owner += numbers >= self._ends.take(owner)
        return owner


class Plan:
    """Divides a share's order into runs. placement: the data node that holds each row.

    apart: whether a run may only have steps of one part of a mixture. numbered: whether every run is an InterleavedRun
    with the numbers of its rows.
    """

    def __init__(
        self, epoch: Epoch, share: Share, placement: Placement, *, apart: bool = False, numbered: bool = False
    ) -> None:
        self._epoch, self._share, self._placement = epoch, share, placement
        self._apart, self._numbered = apart, numbered
        self._ends = np.array([end for _, end in placement.bounds], np.int64)
        owners = [i for i, (start, end) in enumerate(placement.bounds) if end > start]
        self._only = owners[0] if len(owners) == 1 else None
        self._ahead_steps, self._ahead_numbers = range(0), np.empty(0, np.int64)

    def next(self, step: int, most_rows: int) -> Run | InterleavedRun | None:
        """The next run from a step on; None at the end of the epoch.

        A Run of as many steps as possible if it is known without a permutation that one node has all their rows.
        Otherwise an InterleavedRun of about most_rows rows, but at least one step.
        """
        epoch, share = self._epoch, self._share
        first = share.first_step(step)
        if first >= epoch.steps:
            return None
        span = epoch.span(first, share)
        size = span.last - span.first
        if size and not self._numbered and (run := self._run(first, size)) is not None:
            return run
        return self._assign(self._alike(first, max(1, min(_MOST_STEPS, most_rows // max(1, size)))), size)

    def _run(self, first: int, size: int) -> Run | None:
        """A Run of steps from `first` on that lie on one data node; None if only the permutation could tell."""
        epoch = self._epoch
        if self._only is not None:
            return Run(self._alike(first, epoch.steps), size, self._only)
        if epoch.scattered or self._placement.scattered:
            return None
        node = int(np.searchsorted(self._ends, epoch.span(first, self._share).first, side="right"))
        if node == len(self._ends):  # padding, which continues at row 0
            return None
        whole = range(first, int(self._ends[node]) // epoch.global_batch, self._share.workers)
        return Run(self._alike(first, len(whole)), size, node) if whole else None

    def _alike(self, first: int, count: int) -> range:
        """At most `count` steps from `first` on, all of the same size."""
        steps = range(first, self._epoch.steps, self._share.workers)[:count]
        if self._apart:
            steps = self._epoch.same_part(steps)
        return steps if self._epoch.size(steps[-1]) == self._epoch.size(first) else steps[:-1]

    def _assign(self, steps: range, size: int) -> InterleavedRun:
        if size == 0:
            return InterleavedRun(steps, size, {}, None, np.empty(0, np.int64))
        numbers = self._numbers(steps, size)
        owner = self._owners(numbers)
        destinations = np.argsort(owner, kind="stable")
        nodes = np.arange(len(self._ends), dtype=owner.dtype)
        bounds = np.searchsorted(owner, nodes, side="right", sorter=destinations)
        per_node = np.diff(bounds, prepend=0)
        counts = {node: int(per_node[node]) for node in np.flatnonzero(per_node).tolist()}
        seams = bounds[(bounds > 0) & (bounds < len(destinations))]
        laid = bool((destinations[seams - 1] < destinations[seams]).all())
        ordered = (numbers if laid else numbers[destinations]) if self._numbered else None
        return InterleavedRun(steps, size, counts, None if laid else destinations, ordered)

    def _owners(self, numbers: RowIndices) -> npt.NDArray[Any]:
        """The data node of each number. As small integers, since numpy sorts up to 16 bits by radix sort."""
        if len(self._ends) > _FEW_NODES:
            return self._search.owners(numbers)
        owner = np.zeros(len(numbers), np.uint8)
        for end in self._ends[:-1]:
            owner += numbers >= end
        return owner

    @cached_property
    def _search(self) -> _Search:
        return _Search(self._ends)

    def _numbers(self, steps: range, size: int) -> RowIndices:
        """The numbers of the steps' rows. Computes more steps at a time and keeps them for the next call."""
        if steps[0] not in self._ahead_steps or steps[-1] not in self._ahead_steps:
            ahead = len(steps) if len(steps) == 1 else max(len(steps), min(_MOST_STEPS, _AHEAD_ROWS // size))
            self._ahead_steps = self._alike(steps[0], ahead)
            self._ahead_numbers = self._placement.numbers(self._epoch.rows_of(self._ahead_steps, self._share))
        first = self._ahead_steps.index(steps[0]) * size
        return self._ahead_numbers[first : first + len(steps) * size]
