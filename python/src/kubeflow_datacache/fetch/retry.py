# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Retries calls while servers load or restart: exponential back-off up to a deadline, logged as warnings."""

from __future__ import annotations

import contextlib
import logging
import random
import re
import threading
import time
from collections.abc import Callable, Generator
from typing import Final

from kubeflow_datacache.codes import code_of, permanent_error, reason_of
from kubeflow_datacache.errors import UnreachableError

_FIRST, _MOST, _FACTOR = 0.05, 2.0, 1.6  # back-off in seconds: first, maximum, and growth per attempt
_LEAST: Final = 0.001  # seconds, so that the last pause ends after the deadline however times are rounded
_SILENT: Final = 1.0  # seconds before the first warning, so that short restarts are not logged
_SAY_EVERY: Final = 10.0  # seconds between warnings
_COUNTS: Final = re.compile(r"\(\d+/\d+ (?:splits|files)\)")
_log: Final = logging.getLogger("kubeflow_datacache")


def counts_in(reason: str) -> list[str]:
    """What a head's reason counts of its load, such as "(12/28 splits)" (docs/contract.md): a change is progress."""
    return _COUNTS.findall(reason)


class Attempts:
    """Counts the failures of one operation and waits between its attempts. Not safe for concurrent use.

    `what` describes the operation, such as "ask the head at grpc://..."; the final error message contains it. Retrying
    stops retry_seconds after the first failure, or with from_now after the attempts were made, as a server that does
    not answer fails late; or after the last failure whose answer showed progress: a cache that loads
    the rows of a lost machine again is waited for as long as it gets on. Long waits are logged as warnings by the
    logger "kubeflow_datacache", which Python shows by default.
    """

    def __init__(
        self,
        what: str,
        retry_seconds: float,
        stop: threading.Event | None = None,
        now: Callable[[], float] = time.monotonic,
        *,
        from_now: bool = False,
    ) -> None:
        self._what, self._retry_seconds, self._now = what, retry_seconds, now
        self._stop = stop or threading.Event()
        self.succeeded()
        self._begun = now() if from_now else None

    def succeeded(self) -> None:
        """Records a success: the next failure starts a new deadline."""
        self._begun: float | None = None
        self._since = self._say_at = 0.0  # when the deadline's time began, and when the next warning is due
        self._failures, self._pause, self._counts = 0, _FIRST, list[str]()

    @contextlib.contextmanager
    def not_counted(self) -> Generator[None]:
        """The time that the with block takes, which has a limit of its own, doesn't count."""
        begun = self._now()
        try:
            yield
        finally:
            self._since += self._now() - begun

    def failed(self, error: Exception) -> None:
        """Records a failure and waits before the next attempt. Raises if the error is permanent or the deadline has
        passed."""
        if (end := permanent_error(error)) is not None:
            raise end from error
        now, counts = self._now(), counts_in(reason_of(error))
        if self._failures == 0:
            begun = self._begun = now if self._begun is None else self._begun
            self._since, self._say_at, self._counts = begun, begun + _SILENT, counts
        if counts != self._counts:
            self._since, self._counts = now, counts
        self._failures += 1
        spent, most = now - self._since, self._retry_seconds
        answer = f"{code_of(error)}: {reason_of(error)}"
        if spent >= most:
            begun = now if self._begun is None else self._begun
            progress = f", {spent:.1f} s of them without progress" if self._since > begun else ""
            raise UnreachableError(
                f"could not {self._what}: tried {self._failures} times in {now - begun:.1f} s{progress}"
                f" (retry_seconds = {most:g}); the last answer was {answer}. See whether the cache runs, at this"
                " address, and its log; if it only needs longer, give DataCache more retry_seconds"
            ) from error
        if now >= self._say_at:
            self._say_at = now + _SAY_EVERY
            _log.warning(
                "waiting %.0f of at most %.0f s to %s; the last answer was %s", spent, most, self._what, answer
            )
        pause = self._pause * random.uniform(0.75, 1.25)
        self._pause = min(_MOST, self._pause * _FACTOR)
        self._stop.wait(max(_LEAST, min(pause, most - spent)))
