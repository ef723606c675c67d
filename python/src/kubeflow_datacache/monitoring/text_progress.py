# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""TextProgress: an epoch's progress as one line of text on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final, TextIO

from kubeflow_datacache.monitoring.stats import Stats

_TERMINAL_SECONDS: Final = 0.2  # between updates on a terminal
_LOG_SECONDS: Final = 10.0  # between lines in a log
_WIDTH: Final = 24
_CLEAR: Final = "\x1b[K"  # clears the rest of the terminal line


class TextProgress:
    """Shows completed steps of `total`, rows per second, the time left and the bottleneck.

    On a terminal, a bar that is overwritten at each update; elsewhere, such as in a pod's log, one line every ten
    seconds and one at the end. name: a label such as "epoch 3". begin: the loader's stats at the start.
    """

    def __init__(
        self,
        name: str,
        total: int,
        begin: Stats,
        out: TextIO | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name, self._total, self._begin = name, total, begin
        self._out, self._now = out or sys.stderr, now
        self._terminal = self._out.isatty()
        self._every = _TERMINAL_SECONDS if self._terminal else _LOG_SECONDS
        self._begun = self._shown = now()

    def due(self) -> bool:
        """Whether the next update is due."""
        return self._now() - self._shown >= self._every

    def update(self, stats: Stats) -> None:
        """Writes the current progress."""
        self._shown = self._now()
        self._write(self._line(stats), "" if self._terminal else "\n")

    def close(self, stats: Stats) -> None:
        """Writes the final progress and ends the line."""
        self._write(self._line(stats), "\n")

    def _write(self, line: str, end: str) -> None:
        line = f"\r{line}{_CLEAR}" if self._terminal else line
        print(line, end=end, file=self._out, flush=True)

    def _line(self, stats: Stats) -> str:
        done, spent = stats.next_step, max(1e-9, self._now() - self._begun)
        recent = stats.since(self._begin)
        share = done / self._total if self._total else 1.0
        bar = f"[{'#' * round(share * _WIDTH):<{_WIDTH}}]" if self._terminal else f"{share:.0%},"
        return (
            f"{self._name} {bar} {done:,}/{self._total:,} steps, {recent.rows / spent:,.0f} rows/s,"
            f" {self._left(done, spent)}, bottleneck {recent.bottleneck}"
            f" ({recent.seconds[recent.bottleneck] / (recent.wall or 1.0):.0%})"
        )

    def _left(self, done: int, spent: float) -> str:
        """The estimated time left; at the end, the time taken."""
        fresh = done - self._begin.next_step
        if done >= self._total:
            return f"took {_clock(spent)}"
        return f"{_clock(spent / fresh * (self._total - done))} left" if fresh > 0 else "?:?? left"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
