# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The consumer: compares the loader's rows with the table. Its cost is excluded from the figures."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from loaderbench.case import Batch

# Batches are checked in groups of this many bytes or batches, small enough to leave memory to the loaders.
GROUP_BYTES, GROUP_BATCHES = 1 << 20, 32
# Values are checked in one of this many groups, starting with the first. Checking all values of narrow rows would take
# more CPU than the fastest loader, and evict its data from the CPU caches.
GROUPS_A_LOOK = 16


class Check:
    """Counts rows, and for some adds up the bits of their values (for lists and bytes: of each row's first and last
    item).

    ids: the column with row numbers. join: concatenates tensors. rows: counted so far. cpu: CPU time of the check in
    this thread, to subtract from a loader's figures.
    """

    def __init__(self, ids: str, join: Callable[[list[Any]], Any] = np.concatenate) -> None:
        self.rows = 0
        self.cpu = 0.0
        self._ids, self._join = ids, join
        self._group: list[Batch] = []
        self._limit = 1
        self._counted = [np.zeros(0, np.int64)]  # row numbers of all rows, by group
        self._looked = [np.zeros(0, np.int64)]  # and of the rows whose values were checked
        self._sum = self._looked_rows = self._looked_bytes = 0

    @property
    def bytes(self) -> int:
        """Estimated bytes of the tensors so far, from the mean size of the checked rows."""
        return self.rows * self._looked_bytes // max(1, self._looked_rows)

    def add(self, batch: Batch) -> bool:
        """Adds a batch; returns True if it completed a group."""
        self._group.append(batch)
        if len(self._group) < self._limit:
            return False
        self.flush()
        return True

    def flush(self) -> None:
        """Counts the batches of the incomplete group."""
        start = time.thread_time()
        if self._group:
            group, self._group = self._group, []
            ids = _array(self._join([batch[self._ids] for batch in group]), np.int64)
            if (len(self._counted) - 1) % GROUPS_A_LOOK == 0:
                self._look(group, ids)
            self.rows += len(ids)
            self._counted.append(ids)
        self.cpu += time.thread_time() - start

    def verify(self, truth: npt.NDArray[np.int64], whole: bool) -> None:
        """Raises ValueError if a row is not of the table or occurs twice, or with `whole` if one is missing."""
        ids = np.concatenate(self._counted)
        if twice := len(ids) - len(np.unique(ids)):
            raise ValueError(f"{twice} of {len(ids)} rows came twice")
        if whole and len(ids) != len(truth):
            raise ValueError(f"{len(ids)} rows of {len(truth)} came in a whole epoch")
        looked = np.concatenate(self._looked)
        if (self._sum - int(truth[looked].sum())) % 2**64:
            raise ValueError(f"the sums over {len(looked)} of {len(ids)} rows are not the table's")

    def _look(self, group: list[Batch], ids: npt.NDArray[np.int64]) -> None:
        before = self._looked_bytes
        for name in group[0]:
            self._column([batch[name] for batch in group])
        self._looked.append(ids)
        self._looked_rows += len(ids)
        self._limit = min(GROUP_BATCHES, 1 + GROUP_BYTES * len(group) // (self._looked_bytes - before))

    def _column(self, parts: list[Any]) -> None:
        if isinstance(parts[0], list):
            rows = [_array(row, np.uint8) for part in parts for row in part]
            self._looked_bytes += sum(row.nbytes for row in rows)
            self._sum += sum(int(row[0]) + int(row[-1]) for row in rows)
            return
        arrays = [_array(part, np.int64, np.int32, np.float64) for part in parts]
        self._looked_bytes += sum(array.nbytes for array in arrays)
        whole = np.concatenate([array if array.ndim == 1 else array[:, [0, -1]] for array in arrays])
        bits = whole.view(np.int64) if whole.dtype == np.float64 else whole
        self._sum += int(bits.sum(dtype=np.int64))


def _array(tensor: Any, *allowed: type) -> npt.NDArray[Any]:
    array = np.asarray(tensor)
    if array.dtype not in allowed:
        raise TypeError(f"a column came as {array.dtype}, which the table does not have")
    return array
