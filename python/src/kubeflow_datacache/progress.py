# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A progress bar on standard error, of characters alone."""

from __future__ import annotations

import sys
import time
from typing import TextIO

_EVERY = 0.2  # seconds
_WIDTH = 24


class Progress:
    """Shows steps done of `total`, rows a second and the share of time that the loop waited, in one line."""

    def __init__(self, name: str, total: int, done: int = 0, out: TextIO | None = None) -> None:
        self._name, self._total, self._first = name, total, done
        self._out = out or sys.stderr
        self._begun = time.monotonic()
        self._shown = 0.0

    def update(self, done: int, rows: int, waited: float) -> None:
        """Shows `done` steps, `rows` since the begin and the share `waited` (0..1), five times a second at most."""
        now = time.monotonic()
        if now - self._shown >= _EVERY:
            self._shown = now
            self._show(done, rows, waited, "\r")

    def due(self) -> bool:
        """Whether update would show anything."""
        return time.monotonic() - self._shown >= _EVERY

    def close(self, done: int, rows: int, waited: float) -> None:
        """Shows the end, and ends the line."""
        self._show(done, rows, waited, "\n")

    def _show(self, done: int, rows: int, waited: float, end: str) -> None:
        share = done / self._total if self._total else 1.0
        bar = "#" * round(share * _WIDTH)
        speed = rows / max(1e-9, time.monotonic() - self._begun)
        line = f"{self._name} [{bar:<{_WIDTH}}] {done}/{self._total} steps, {speed:,.0f} rows/s, waiting {waited:.0%}"
        print(f"\r{line:<100}", end=end, file=self._out, flush=True)
