# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""How far a command is."""

from __future__ import annotations

import sys
import time


class Progress:
    """Lines on stderr with the minutes gone and the minutes expected in all."""

    def __init__(self) -> None:
        self._start, self._expected = time.perf_counter(), 0.0

    def expect(self, seconds: float) -> None:
        """The rest will take this long."""
        self._expected = time.perf_counter() - self._start + seconds

    def __call__(self, message: str) -> None:
        gone = (time.perf_counter() - self._start) / 60
        expected = f" of about {self._expected / 60:.1f}" if self._expected else ""
        print(f"[{gone:4.1f}{expected} min] {message}", file=sys.stderr, flush=True)
