# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Retries while servers load or restart: exponential back-off up to a deadline, logged as warnings."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kubeflow_datacache.codes import code_of, final, reason_of
from kubeflow_datacache.errors import UnreachableError

_FIRST, _MOST, _FACTOR = 0.05, 2.0, 1.6  # seconds of back-off
_SILENT: Final = 1.0  # seconds of waiting before the first warning; short restarts are not logged
_SAY_EVERY: Final = 10.0  # seconds
_log: Final = logging.getLogger("kubeflow_datacache")


@dataclass(frozen=True)
class Patience:
    """How long to try again without any progress: `seconds` from the first failure."""

    seconds: float = 300.0


class Attempts:
    """The failures of one thing that is tried until it works. Not for concurrent use.

    `what` says what is tried, as "ask the head at grpc://..."; it opens the error that ends the attempts. A wait that
    lasts is told as a warning of the logger "kubeflow_datacache", which Python shows unless told otherwise.
    """

    def __init__(
        self,
        what: str,
        patience: Patience,
        stop: threading.Event | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what, self._patience, self._stop, self._now = what, patience, stop or threading.Event(), now
        self._begun: float | None = None
        self._failures = 0
        self._say_at = _SILENT

    def progress(self) -> None:
        """Records a success: the deadline starts again at the next failure."""
        self._begun, self._failures, self._say_at = None, 0, _SILENT

    def failed(self, error: Exception) -> None:
        """Waits before the next try, or raises if there is none: refused, failed for good, or out of patience."""
        if (end := final(error)) is not None:
            raise end from error
        now = self._now()
        self._begun = self._begun or now
        self._failures += 1
        spent, most = now - self._begun, self._patience.seconds
        answer = f"{code_of(error)}: {reason_of(error)}"
        if spent >= most:
            raise UnreachableError(
                f"could not {self._what}: tried {self._failures} times in {spent:.1f} s (retry_seconds = {most:g}); the"
                f" last answer was {answer}. See whether the cache runs, at this address, and its log; if it only needs"
                " longer, give DataCache more retry_seconds"
            ) from error
        if spent >= self._say_at:
            self._say_at = spent + _SAY_EVERY
            _log.warning(
                "waiting %.0f of at most %.0f s to %s; the last answer was %s", spent, most, self._what, answer
            )
        pause = min(_MOST, _FIRST * _FACTOR ** (self._failures - 1)) * random.uniform(0.75, 1.25)
        self._stop.wait(min(pause, most - spent))
