# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The time limit of everything that tests wait for.

There is one: it is long, it is reached only by a test that fails, and it grows with the load of the machine, so that
whether a test passes does not depend on how busy the machine is. test/kit/deadline is the same for Go.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")

_IDLE = 180.0  # seconds: the limit on a machine that does nothing else
_POLL = 0.02  # seconds between two looks of eventually
_MOST_LOAD = 6.0
_loads = [1.0]  # all that were measured: the machine may be idle again when a wait ends


def limit() -> float:
    """Seconds to wait at most, from now on: 180, and more the busier the machine is. Takes a moment to measure that."""
    _loads.append(_load())
    return _IDLE * min(max(_loads), _MOST_LOAD)


class Wait:
    """One wait, which begins when it is made."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self._until = self.began + _IDLE

    def over(self) -> bool:
        """Whether the time limit has passed. Measures the load only after 180 seconds, and after the limit of then."""
        now = time.monotonic()
        if now < self._until:
            return False
        before = self._until
        self._until = self.began + limit()
        return self._until <= before or now >= self._until


def eventually(what: str, check: Callable[[], _T | None]) -> _T:
    """Calls check every 20 ms until it returns something true, and returns that.

    At the time limit it raises AssertionError, which says what it waited for.
    """
    wait = Wait()
    while not (found := check()):
        assert not wait.over(), f"waited {time.monotonic() - wait.began:.0f} s for {what}, and got {found!r}"
        time.sleep(_POLL)
    return found


def pause(seconds: float) -> None:
    """Lets time pass where that is what a test is about: a slow peer, a silent one. Not to wait for something."""
    time.sleep(seconds)


def _load() -> float:
    """How many times as long work takes as on an idle machine.

    As the time of many equal pieces of work beside the shortest of them, which nothing interrupted.
    """
    pieces, shortest = 200, float("inf")
    began = time.perf_counter()
    for _ in range(pieces):
        before = time.perf_counter()
        digest = b""
        for _ in range(400):
            digest = hashlib.sha256(digest).digest()
        shortest = min(shortest, time.perf_counter() - before)
    return (time.perf_counter() - began) / (pieces * shortest)
