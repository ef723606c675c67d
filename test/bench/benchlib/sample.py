# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""What to measure, and one measurement."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from benchlib.tables import EPOCHS_ONLY, Table


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What to measure, with what. server is None for the references alone. trainer is the folder with the programs of
    Trainer's own data cache, None where they are not built.
    """

    server: Path | None
    trainer: Path | None
    tools: Path
    logs: Path
    only: list[str]
    clients: list[int]
    nodes: int
    rounds: int

    def of(self, table: Table) -> Self:
        """What to measure of a table."""
        if table.name not in EPOCHS_ONLY:
            return self
        return replace(self, only=[m for m in self.only if m == "shuffle"])

    def wants(self, *measures: str) -> bool:
        return any(m in self.only for m in measures)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One measurement: times in seconds, CPU of all threads, memory in bytes, gigabytes of 1e9 bytes of Arrow.

    case is the number of clients, the kind of epoch or of call. wall is the median of many calls where the measure is
    latency; first and last are those of many clients that took the least and the most.
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
