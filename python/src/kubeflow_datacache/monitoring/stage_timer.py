# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""StageTimer: measures which stage an iteration spends its time in."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Final, Literal

Stage = Literal["head", "server", "wire", "decode", "transform", "consumer"]
STAGES: Final[tuple[Stage, ...]] = ("head", "server", "wire", "decode", "transform", "consumer")


class StageTimer:
    """Splits the wall time of iterations into stages; the stages always add up to the wall time.

    While the consumer works, time counts for "consumer". While it waits, time counts for what the producer is doing: a
    stage, or reading a data node's stream. Reading counts for "head" while the stream asks the head. Otherwise it
    counts for "server" and "wire", once the next message arrives: for "server" as long as the server says that it
    worked on the message, or as long as nothing arrived from it, beyond a round trip, if that is longer.

    Safe for concurrent use. All times are in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._spent: dict[Stage, float] = dict.fromkeys(STAGES, 0.0)
        self._unsettled: dict[int, float] = {}
        self._silent: dict[int, float] = {}  # of the unsettled time, when nothing arrived
        self._sampled: dict[int, float] = {}  # of the unsettled time, what was looked at
        self._at_head: set[int] = set()
        self._producer: Stage | int = "head"
        self._waits: Stage | Literal["producer"] | None = None
        self._mark: float | None = None

    def start(self) -> None:
        """Starts the timer at the start of an iteration."""
        with self._lock:
            self._mark, self._waits, self._producer = self._now(), None, "head"

    def stop(self) -> None:
        """Stops the timer at the end of an iteration."""
        with self._lock:
            self._charge()
            self._mark = None
            self._at_head.clear()

    def set_producer(self, what: Stage | int) -> None:
        """Sets what the producer is doing: a stage, or waiting for the stream of a data node."""
        with self._lock:
            self._charge()
            self._producer = what

    def consumer_waits(self, on: Stage | Literal["producer"] = "producer") -> None:
        """The consumer starts to wait, for a stage or for the producer."""
        with self._lock:
            self._charge()
            self._waits = on

    def consumer_resumes(self) -> None:
        """The consumer continues to work."""
        with self._lock:
            self._charge()
            self._waits = None

    @property
    def consumer_is_waiting(self) -> bool:
        """Whether the consumer waits now."""
        return self._waits is not None

    def set_asking_head(self, node: int, yes: bool) -> None:
        """A data node's stream starts or stops asking the head for a new ticket."""
        with self._lock:
            self._charge()
            (self._at_head.add if yes else self._at_head.discard)(node)

    def sample(self, node: int, *, silent: bool) -> None:
        """Looks at a wait for a data node: whether no byte arrived from it since the last look."""
        with self._lock:
            self._charge()
            waited = self._unsettled.get(node, 0.0)
            if silent:
                self._silent[node] = self._silent.get(node, 0.0) + waited - self._sampled.get(node, 0.0)
            self._sampled[node] = waited

    def message_received(self, node: int, busy: float, *, transfer: float = math.inf, round_trip: float = 0.0) -> None:
        """A message arrived on which the data node had worked for `busy` seconds.

        Of the wait for it, `busy` or the silent seconds count for "server", the rest for "wire". transfer: the seconds
        between its first byte and its last, before which the wait was silent. busy = math.inf assigns the whole wait to
        "server".
        """
        with self._lock:
            self._charge()
            waited = self._unsettled.pop(node, 0.0)
            self._sampled.pop(node, None)
            silent = max(self._silent.pop(node, 0.0), waited - transfer) - round_trip
            server = min(waited, max(busy, silent))
            self._spent["server"] += server
            self._spent["wire"] += waited - server

    def seconds(self) -> dict[Stage, float]:
        """The seconds of each stage so far. A wait for a message that has not arrived counts for "server"."""
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
