# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Patience with servers that restart: exponential back-off up to a deadline."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass

from kubeflow_datacache.codes import code_of, final, reason_of
from kubeflow_datacache.errors import UnreachableError

_FIRST, _MOST, _FACTOR = 0.05, 2.0, 1.6  # seconds of back-off


@dataclass(frozen=True)
class Patience:
    """How long to try again without any progress: `seconds` from the first failure."""

    seconds: float = 300.0


class Attempts:
    """The failures of one thing that is tried until it works. Not for concurrent use.

    `what` says what is tried, as "ask the head at grpc://..."; it opens the error that ends the attempts.
    """

    def __init__(self, what: str, patience: Patience, stop: threading.Event | None = None) -> None:
        self._what, self._patience, self._stop = what, patience, stop or threading.Event()
        self._begun: float | None = None
        self._failures = 0

    def progress(self) -> None:
        """It works again: the deadline counts anew from the next failure."""
        self._begun, self._failures = None, 0

    def failed(self, error: Exception) -> None:
        """Waits before the next try, or raises if there is none: refused, failed for good, or out of patience."""
        if (end := final(error)) is not None:
            raise end from error
        now = time.monotonic()
        self._begun = self._begun or now
        self._failures += 1
        spent = now - self._begun
        if spent >= self._patience.seconds:
            raise UnreachableError(
                f"could not {self._what}: tried {self._failures} times in {spent:.1f} s (retry_seconds ="
                f" {self._patience.seconds:g}); the last answer was {code_of(error)}: {reason_of(error)}"
            ) from error
        pause = min(_MOST, _FIRST * _FACTOR ** (self._failures - 1)) * random.uniform(0.75, 1.25)
        self._stop.wait(min(pause, self._patience.seconds - spent))
