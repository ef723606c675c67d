# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Setup and Sample: what to measure, and one measurement."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from benchlib.tables import EPOCHS_ONLY, Table


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What to measure. server: None to measure the references only. trainer: the folder with the programs of Trainer's
    own data cache; None if they are not built."""

    server: Path | None
    trainer: Path | None
    tools: Path
    logs: Path
    only: list[str]
    clients: list[int]
    nodes: int
    rounds: int

    def of(self, table: Table) -> Self:
        """The setup for one table."""
        if table.name not in EPOCHS_ONLY:
            return self
        return replace(self, only=[m for m in self.only if m == "shuffle"])

    def wants(self, *measures: str) -> bool:
        return any(m in self.only for m in measures)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One measurement: times in seconds, CPU of all threads, memory in bytes, gigabytes of 1e9 bytes of Arrow.

    case: the number of clients, or the kind of epoch or call. wall: for latency, the median of many calls. first, last:
    the shortest and longest time of many clients.
    """

    measure: str
    table: str
    subject: str
    round: int
    gigabytes: float
    wall: float
    server_cpu: float
    case: str = ""
    first: float = 0.0
    last: float = 0.0
    client_cpu: float = 0.0
    peak_rss: int = 0
    resident_rss: int = 0
    load_average: float = 0.0
