# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The rows of the comparison: two tables, whose ids tell them apart."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

ROWS = {"a": 7_000, "b": 3_000}
FIRST = {"a": 0, "b": 1_000_000}  # the first id
WEIGHTS = {"a": 0.7, "b": 0.3}
FILES = 4  # of each table
BATCH = 60  # rows of a step over all ranks: a multiple of both worlds
LABELS = 3  # row i has the label i % LABELS; the filter wants 1
FILTERED = len(range(1, ROWS["a"], LABELS))


@dataclass(frozen=True)
class Run:
    """What one rank of a training is asked to do. kind: "mix" or "filter"; steps: how many batches to read, None: all.

    states: of all ranks of the run that is gone on with, none at the start.
    """

    kind: str
    data: Path
    endpoints: dict[str, str]
    rank: int
    world: int
    steps: int | None
    states: list[bytes]

    @property
    def state(self) -> bytes | None:
        """The state that this rank goes on from; where there are more ranks than before, some share one."""
        return self.states[self.rank % len(self.states)] if self.states else None


def table(name: str, file: int | None = None) -> pa.Table:
    """The rows of a table, or of one of its files."""
    rows = np.arange(ROWS[name])
    if file is not None:
        rows = np.array_split(rows, FILES)[file]
    return pa.table({"id": rows + FIRST[name], "label": rows % LABELS})
