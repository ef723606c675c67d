# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""How consecutive ranks of one host divide the rows that are read for all of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kubeflow_datacache.order.epoch import Epoch, Share
from kubeflow_datacache.order.plan import Destinations, InterleavedRun, Plan, Run


@dataclass(frozen=True)
class Locals:
    """Ranks h * count to (h + 1) * count - 1 of W * count ranks, whose rows of each step are those of rank h of W.

    epoch, share: of rank h of W.
    """

    epoch: Epoch
    share: Share
    count: int

    def bounds(self, step: int) -> list[int]:
        """Where each rank's rows of a step begin among those of the share, and the number of these."""
        own = self.epoch.span(step, self.share)
        first, world = self.share.rank * self.count, self.share.world * self.count
        ranks = [Share(rank=first + i, world=world) for i in range(self.count)]
        return [*(self.epoch.span(step, rank).first - own.first for rank in ranks), own.last - own.first]


class LocalPlan(Plan):
    """Divides the share into runs whose rows are in the order of its ranks, and within each rank's in that of steps."""

    def __init__(self, ranks: Locals, *placed: Any, **options: Any) -> None:
        super().__init__(ranks.epoch, ranks.share, *placed, **options)
        self._ranks = ranks

    def next(self, step: int, most_rows: int) -> InterleavedRun | None:
        """The next run from a step on, of about most_rows rows for each rank, but at least one step; None at the end of
        the epoch."""
        most_rows *= self._ranks.count
        run = super().next(step, most_rows)
        if isinstance(run, Run):  # the messages of one node, whose rows are in the order of steps
            steps = run.steps[: max(1, most_rows // max(1, run.size))]
            run = InterleavedRun(steps, run.size, {run.node: len(steps) * run.size} if run.size else {}, None)
        if run is None or len(run.steps) == 1 or not run.size:
            return run
        moved = _moved(len(run.steps), self._ranks.bounds(run.steps[0]))
        return replace(run, destinations=moved if run.destinations is None else moved[run.destinations])


def _moved(steps: int, bounds: list[int]) -> Destinations:
    """For each row of some steps, in the order of steps, its place in the order of ranks."""
    sizes = np.diff(bounds)
    begins, widths = np.repeat(bounds[:-1], sizes), np.repeat(sizes, sizes)
    offsets = np.arange(bounds[-1]) + (steps - 1) * begins
    return (offsets + np.arange(steps)[:, None] * widths).reshape(-1)
