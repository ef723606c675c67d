# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Where the time of an iteration goes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, Literal

Stage = Literal["head", "server", "wire", "decode", "transform", "consumer"]
STAGES: Final[tuple[Stage, ...]] = ("head", "server", "wire", "decode", "transform", "consumer")


class Clock:
    """Splits the wall time of iterations into stages that add up to it, by construction.

    While the consumer works, time is the consumer's. While it waits, time belongs to what the producer does just then:
    a stage, or a data node's stream; and a stream is at the head, or it waits for rows: that time is kept until the
    next message tells how much of it was the server's work. Safe for concurrent use; seconds throughout.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._spent: dict[Stage, float] = dict.fromkeys(STAGES, 0.0)
        self._unsettled: dict[int, float] = {}
        self._at_head: set[int] = set()
        self._producer: Stage | int = "head"
        self._waits: Stage | Literal["producer"] | None = None
        self._mark: float | None = None

    def begin(self) -> None:
        """An iteration begins: the clock runs."""
        with self._lock:
            self._mark, self._waits, self._producer = self._now(), None, "head"

    def end(self) -> None:
        """The iteration ends: the clock stands still."""
        with self._lock:
            self._charge()
            self._mark = None
            self._at_head.clear()

    def produce(self, what: Stage | int) -> None:
        """The producer now does this, or waits for the stream of this data node."""
        with self._lock:
            self._charge()
            self._producer = what

    def wait(self, on: Stage | Literal["producer"] = "producer") -> None:
        """The consumer begins to wait: for a stage, or for whatever the producer does."""
        with self._lock:
            self._charge()
            self._waits = on

    def resume(self) -> None:
        """The consumer has what it waited for."""
        with self._lock:
            self._charge()
            self._waits = None

    def at_head(self, node: int, yes: bool) -> None:
        """The data node's stream begins or ends to ask the head for a new ticket."""
        with self._lock:
            self._charge()
            (self._at_head.add if yes else self._at_head.discard)(node)

    def settle(self, node: int, busy: float) -> None:
        """A message came that the data node worked on for `busy` seconds: so much of the wait for it was the server's.

        The rest was the wire's. math.inf makes all of the wait the server's.
        """
        with self._lock:
            self._charge()
            waited = self._unsettled.pop(node, 0.0)
            server = min(waited, busy)
            self._spent["server"] += server
            self._spent["wire"] += waited - server

    def seconds(self) -> dict[Stage, float]:
        """The seconds of each stage until now. Waits for a message still under way count as the server's."""
        with self._lock:
            self._charge()
            spent = dict(self._spent)
            spent["server"] += sum(self._unsettled.values())
            return spent

    def _charge(self) -> None:
        if self._mark is None:
            return
        now = self._now()
        elapsed, self._mark = now - self._mark, now
        stage = "consumer" if self._waits is None else self._producer if self._waits == "producer" else self._waits
        if isinstance(stage, int):
            if stage not in self._at_head:
                self._unsettled[stage] = self._unsettled.get(stage, 0.0) + elapsed
                return
            stage = "head"
        self._spent[stage] += elapsed
