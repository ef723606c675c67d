# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Progress of a command."""

from __future__ import annotations

import sys
import time


class Progress:
    """Prints progress lines to stderr with the elapsed and the expected minutes."""

    def __init__(self) -> None:
        self._start, self._expected = time.perf_counter(), 0.0

    def expect(self, seconds: float) -> None:
        """Sets the expected remaining time."""
        self._expected = time.perf_counter() - self._start + seconds

    def __call__(self, message: str) -> None:
        gone = (time.perf_counter() - self._start) / 60
        expected = f" of about {self._expected / 60:.1f}" if self._expected else ""
        print(f"[{gone:4.1f}{expected} min] {message}", file=sys.stderr, flush=True)
