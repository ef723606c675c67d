# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Shows progress: one line that is updated on a terminal, a line from time to time in a log."""

from __future__ import annotations

import sys
import time


class Progress:
    """Shows the progress of a task. update() is cheap: it prints at most ten times a second, in a log every 10 s."""

    def __init__(self, what: str, total: int) -> None:
        self._what, self._total = what, total
        self._terminal = sys.stdout.isatty()
        self._pause = 0.1 if self._terminal else 10.0
        self._begun = self._shown = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._begun

    def update(self, done: int, detail: str = "") -> None:
        """Shows the completed part of the total, followed by a detail."""
        if time.monotonic() - self._shown < self._pause:
            return
        self._shown = time.monotonic()
        share = done / self._total if self._total else 1.0
        if self._terminal:
            bar = "#" * round(24 * share)
            print(
                f"\r\033[K{self._what}: [{bar:<24}] {share:4.0%}  {detail}",
                end="",
                flush=True,
            )
        else:
            print(f"{self._what}: {share:.0%}  {detail}", flush=True)

    def close(self, result: str) -> None:
        """Replaces the progress line by the result."""
        print(
            ("\r\033[K" if self._terminal else "") + f"{self._what}: {result} ({self.seconds:.1f} s)",
            flush=True,
        )
