# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Adds up the statistics of a DataLoader's workers."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from kubeflow_datacache.watch.clock import STAGES, Stage
from kubeflow_datacache.watch.stats import Depth, Stats

_WAITS: Final[tuple[Stage, ...]] = tuple(stage for stage in STAGES if stage != "consumer")


class Tally:
    """What the main process gave out and waited for, and why, by what its workers said of their own waiting.

    The main process knows how long it waited, the workers know for what: its time is split as theirs, averaged; what
    they don't explain is the work of merging and of passing batches between processes, "decode".
    """

    def __init__(self) -> None:
        self._last: dict[int, Stats] = {}
        self._ended: dict[Stage, float] = dict.fromkeys(_WAITS, 0.0)
        self._reconnects = 0
        self._steps = self._rows = self._bytes = 0
        self._waited = self._wall = 0.0
        self._begun: float | None = None

    def begin(self) -> None:
        """An iteration begins."""
        self._begun = time.perf_counter()

    def end(self) -> None:
        """The iteration ends, and with it the workers' loaders."""
        if self._begun is not None:
            self._wall += time.perf_counter() - self._begun
            self._begun = None
        for stage, spent in self._waits().items():
            self._ended[stage] = spent
        self._reconnects += sum(stats.reconnects for stats in self._last.values())
        self._last = {}

    def waited(self, seconds: float) -> None:
        """The consumer waited so long."""
        self._waited += seconds

    def report(self, worker: int, stats: Stats) -> None:
        """Records a worker's statistics since the iteration began."""
        self._last[worker] = stats

    def gave(self, rows: int, nbytes: int) -> None:
        """A step was given out."""
        self._steps, self._rows, self._bytes = self._steps + 1, self._rows + rows, self._bytes + nbytes

    def stats(self, epoch: int, next_step: int, held: Depth) -> Stats:
        """The numbers. held: what was received from workers and not given out."""
        wall = self._wall + (time.perf_counter() - self._begun if self._begun is not None else 0.0)
        last = self._last.values()
        seconds = self._split()
        seconds["consumer"] = wall - self._waited
        return Stats(
            seconds=seconds,
            epoch=epoch,
            next_step=next_step,
            steps=self._steps,
            rows=self._rows,
            bytes=self._bytes,
            raw_queue_depth=_sum(stats.raw_queue_depth for stats in last),
            prefetch_queue_depth=_sum([held, *(stats.prefetch_queue_depth for stats in last)]),
            reconnects=self._reconnects + sum(stats.reconnects for stats in last),
        )

    def _waits(self) -> dict[Stage, float]:
        """Seconds of waiting by stage until now, averaged over the workers."""
        workers = max(1, len(self._last))
        return {
            stage: self._ended[stage] + sum(stats.seconds[stage] for stats in self._last.values()) / workers
            for stage in _WAITS
        }

    def _split(self) -> dict[Stage, float]:
        waits = self._waits()
        scale = min(1.0, self._waited / (sum(waits.values()) or 1.0))
        split: dict[Stage, float] = {stage: spent * scale for stage, spent in waits.items()}
        split["decode"] += self._waited - sum(split.values())
        return split


def _sum(depths: Iterable[Depth]) -> Depth:
    held = list(depths)
    return Depth(sum(depth.rows for depth in held), sum(depth.bytes for depth in held))
