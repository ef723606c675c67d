# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which rows of which data node make up the next steps, and where each of them goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from kubeflow_datacache.order import Epoch, Rows, Share

Places = npt.NDArray[np.intp]

_MOST_STEPS: Final = 4096
_AHEAD_ROWS: Final = 1 << 16  # permuted at once: few rows at a time would pay numpy's calls, not its loops
_FEW_NODES: Final = 8  # up to which looking through the rows once a node is cheaper than sorting them


@dataclass(frozen=True)
class Block:
    """Consecutive steps of one share, `size` rows each.

    counts: {data node: how many of its next rows}, only nodes with rows, ascending.
    places: for each of these nodes, where in the block its rows go, ascending; None where the nodes' rows laid end to
    end are the block as they lie.
    """

    steps: range
    size: int
    counts: dict[int, int]
    places: list[Places] | None

    @property
    def rows(self) -> int:
        """Rows of the block."""
        return len(self.steps) * self.size


class Plan:
    """Walks the order of a share and cuts it into blocks. nodes[i] = (start, end) are the rows of data node i."""

    def __init__(self, epoch: Epoch, share: Share, nodes: tuple[tuple[int, int], ...]) -> None:
        self._epoch, self._share = epoch, share
        self._ends = np.array([end for _, end in nodes], np.int64)
        owners = [i for i, (start, end) in enumerate(nodes) if end > start]
        self._only = owners[0] if len(owners) == 1 else None
        self._ahead_steps, self._ahead_rows = range(0), np.empty(0, np.int64)

    def block(self, step: int, most_rows: int) -> Block | None:
        """The next block from a step on, of about most_rows rows but at least one step; None at the epoch's end."""
        epoch, share = self._epoch, self._share
        first = share.first_step(step)
        if first >= epoch.steps:
            return None
        steps = self._run(first, most_rows)
        span = epoch.span(first, share)
        return self._assign(steps, span.last - span.first)

    def _run(self, first: int, most_rows: int) -> range:
        """Steps of one size from `first` on, of about most_rows rows."""
        span = self._epoch.span(first, self._share)
        count = max(1, min(_MOST_STEPS, most_rows // max(1, span.last - span.first)))
        steps = range(first, self._epoch.steps, self._share.workers)[:count]
        return steps if self._epoch.size(steps[-1]) == self._epoch.size(first) else steps[:-1]

    def _assign(self, steps: range, size: int) -> Block:
        rows = len(steps) * size
        if rows == 0:
            return Block(steps, size, {}, None)
        if self._only is not None:
            return Block(steps, size, {self._only: rows}, None)
        owner = self._owners(self._rows(steps, size))
        tally = np.bincount(owner)
        nodes = np.flatnonzero(tally).tolist()
        counts = {node: int(tally[node]) for node in nodes}
        if len(nodes) == 1 or bool((owner[1:] >= owner[:-1]).all()):
            return Block(steps, size, counts, None)
        if len(nodes) <= _FEW_NODES:
            return Block(steps, size, counts, [np.flatnonzero(owner == node) for node in nodes])
        ordered = np.argsort(owner, kind="stable")
        return Block(steps, size, counts, np.split(ordered, np.cumsum(list(counts.values()))[:-1]))

    def _owners(self, rows: Rows) -> npt.NDArray[np.integer]:
        """The data node of each row."""
        if len(self._ends) > _FEW_NODES:
            owner = np.searchsorted(self._ends, rows, side="right")
            return owner.astype(np.uint16) if len(self._ends) < 1 << 16 else owner  # numpy sorts short ones by radix
        owner = np.zeros(len(rows), np.uint8)
        for end in self._ends[:-1]:
            owner += rows >= end
        return owner

    def _rows(self, steps: range, size: int) -> Rows:
        """The rows of the steps, of which some more are kept for the next call."""
        if steps[0] not in self._ahead_steps or steps[-1] not in self._ahead_steps:
            most = len(steps) * size if len(steps) == 1 else _AHEAD_ROWS
            self._ahead_steps = self._run(steps[0], max(most, len(steps) * size))
            self._ahead_rows = self._epoch.rows_of(self._ahead_steps, self._share)
        first = self._ahead_steps.index(steps[0]) * size
        return self._ahead_rows[first : first + len(steps) * size]
