# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Progress bars of an epoch: tqdm's in a terminal or notebook if tqdm is installed, otherwise TextProgress."""

from __future__ import annotations

import sys
import time
from typing import Any, Final, Protocol

from kubeflow_datacache.monitoring.stats import Stats
from kubeflow_datacache.monitoring.text_progress import TextProgress

_SECONDS: Final = 0.1  # between updates


class ProgressBar(Protocol):
    """Shows the progress of an epoch."""

    def due(self) -> bool:
        """Whether the next update is due."""
        ...

    def update(self, stats: Stats) -> None:
        """Shows the current position."""
        ...

    def close(self, stats: Stats) -> None:
        """Shows the final position and ends the line."""
        ...


class TqdmBar:
    """A tqdm bar of steps, followed by rows per second and the bottleneck."""

    def __init__(self, tqdm: Any, name: str, total: int, begin: Stats) -> None:
        self._begin, self._shown = begin, time.monotonic()
        self._bar = tqdm(total=total, initial=begin.next_step, desc=name, unit="step", mininterval=0)

    def due(self) -> bool:
        """Whether the next update is due."""
        return time.monotonic() - self._shown >= _SECONDS

    def update(self, stats: Stats) -> None:
        """Updates the bar."""
        self._shown = time.monotonic()
        recent = stats.since(self._begin)
        rate = recent.rows / (recent.wall or 1.0)
        self._bar.set_postfix_str(f"{rate:,.0f} rows/s, bottleneck {recent.bottleneck}", refresh=False)
        self._bar.update(stats.next_step - self._bar.n)

    def close(self, stats: Stats) -> None:
        """Shows the final position and ends the line."""
        self.update(stats)
        self._bar.close()


def progress_bar(name: str, total: int, begin: Stats) -> ProgressBar:
    """The progress bar of an epoch. In a log, where tqdm cannot overwrite lines, a plain line from time to time."""
    tqdm = tqdm_class()
    return TextProgress(name, total, begin) if tqdm is None else TqdmBar(tqdm, name, total, begin)


def tqdm_class() -> Any:
    """The tqdm class for a terminal or notebook; None elsewhere, or if tqdm is not installed."""
    if not sys.stderr.isatty() and "ipykernel" not in sys.modules:
        return None
    try:
        from tqdm.auto import tqdm
    except ModuleNotFoundError:
        return None
    return tqdm
