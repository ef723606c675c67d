# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""WorkerStats: combines the statistics of a DataLoader's workers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Final

from kubeflow_datacache.monitoring.stage_timer import STAGES, Stage
from kubeflow_datacache.monitoring.stats import Depth, Stats

_WAITS: Final[tuple[Stage, ...]] = tuple(stage for stage in STAGES if stage != "consumer")


class WorkerStats:
    """Counts what the main process returned and how long it waited, and divides the waiting time by stage.

    The main process knows how long it waited, its workers know for which stages. The main process's waiting time is
    split in the proportions of the workers' waiting times, averaged over workers. The remainder, for merging and for
    sending batches between processes, counts for "decode".
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: dict[int, Stats] = {}
        self._ended: dict[Stage, float] = dict.fromkeys(_WAITS, 0.0)
        self._reconnects = self._shared = 0
        self._steps = self._rows = self._bytes = 0
        self._waited = self._wall = 0.0
        self._begun: float | None = None

    def begin(self) -> None:
        """Starts an iteration."""
        self._begun = time.perf_counter()

    def end(self) -> None:
        """Ends the iteration, and adds the workers' final statistics to the totals."""
        if self._begun is not None:
            self._wall += time.perf_counter() - self._begun
            self._begun = None
        with self._lock:
            self._ended = self._waits()
            self._reconnects += sum(stats.reconnects for stats in self._last.values())
            self._shared += sum(stats.shared for stats in self._last.values())
            self._last = {}

    def waited(self, seconds: float) -> None:
        """Adds to the consumer's waiting time."""
        self._waited += seconds

    def report(self, worker: int, stats: Stats) -> None:
        """Records a worker's statistics of the current iteration."""
        with self._lock:
            self._last[worker] = stats

    def delivered(self, rows: int, nbytes: int) -> None:
        """Counts a returned step."""
        self._steps, self._rows, self._bytes = self._steps + 1, self._rows + rows, self._bytes + nbytes

    def stats(self, epoch: int, next_step: int, held: Depth) -> Stats:
        """The combined statistics. held: what was received from workers and not returned yet."""
        begun = self._begun
        wall = self._wall + (time.perf_counter() - begun if begun is not None else 0.0)
        with self._lock:
            last, seconds = list(self._last.values()), self._split()
            reconnects, shared = self._reconnects, self._shared
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
            reconnects=reconnects + sum(stats.reconnects for stats in last),
            shared=shared + sum(stats.shared for stats in last),
        )

    def _waits(self) -> dict[Stage, float]:
        """Waiting time by stage so far, averaged over the workers."""
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
