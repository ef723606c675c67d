# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""tqdm's bar where tqdm is installed and somebody looks; else Progress."""

from __future__ import annotations

import sys
import time
from typing import Any, Final, Protocol

from kubeflow_datacache.watch.progress import Progress
from kubeflow_datacache.watch.stats import Stats

_SECONDS: Final = 0.1  # between two looks at a bar


class Bar(Protocol):
    """Shows how far an epoch is."""

    def due(self) -> bool:
        """Whether it is time to show something."""
        ...

    def update(self, stats: Stats) -> None:
        """Shows where the loader is now."""
        ...

    def close(self, stats: Stats) -> None:
        """Shows where the loader is at last, and ends the line."""
        ...


class TqdmBar:
    """An epoch as tqdm shows it: steps, and after them rows a second and the bottleneck."""

    def __init__(self, tqdm: Any, name: str, total: int, begin: Stats) -> None:
        self._begin, self._shown = begin, time.monotonic()
        self._bar = tqdm(total=total, initial=begin.next_step, desc=name, unit="step", mininterval=0)

    def due(self) -> bool:
        """Whether it is time to show something."""
        return time.monotonic() - self._shown >= _SECONDS

    def update(self, stats: Stats) -> None:
        """Tells tqdm where the loader is now."""
        self._shown = time.monotonic()
        recent = stats.since(self._begin)
        rate = recent.rows / (recent.wall or 1.0)
        self._bar.set_postfix_str(f"{rate:,.0f} rows/s, bottleneck {recent.bottleneck}", refresh=False)
        self._bar.update(stats.next_step - self._bar.n)

    def close(self, stats: Stats) -> None:
        """Shows where the loader is at last, and ends the line."""
        self.update(stats)
        self._bar.close()


def bar_of(name: str, total: int, begin: Stats) -> Bar:
    """The bar of an epoch. In a log, where tqdm would write over lines that stay, a plain line now and then."""
    tqdm = tqdm_here()
    return Progress(name, total, begin) if tqdm is None else TqdmBar(tqdm, name, total, begin)


def tqdm_here() -> Any:
    """tqdm's class for where this runs; None if it is not installed, or nobody looks at a terminal or notebook."""
    if not sys.stderr.isatty() and "ipykernel" not in sys.modules:
        return None
    try:
        from tqdm.auto import tqdm
    except ModuleNotFoundError:
        return None
    return tqdm
