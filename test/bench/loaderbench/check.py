# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the consumer does: holds what a loader hands over to the table, and takes no part in the figures."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from loaderbench.case import Batch

# Batches are looked at in groups of so many bytes or batches: small enough to leave loaders their memory.
GROUP_BYTES, GROUP_BATCHES = 1 << 20, 32
# Of so many groups the values of one are looked at, beginning with the first: with narrow rows, to look at all of them
# takes more CPU than the fastest loader, and throws out of the caches what that uses.
GROUPS_A_LOOK = 16


class Check:
    """Counts the rows it is given, and adds up the bits of some (of lists and bytes: the first and last item of a row).

    ids: the column of the rows' numbers. join: makes one tensor of several. rows: of the groups counted so far. cpu:
    what that took of this thread, to be left out of a loader's figures.
    """

    def __init__(self, ids: str, join: Callable[[list[Any]], Any] = np.concatenate) -> None:
        self.rows = 0
        self.cpu = 0.0
        self._ids, self._join = ids, join
        self._group: list[Batch] = []
        self._limit = 1
        self._counted = [np.zeros(0, np.int64)]  # the numbers of all rows, by group
        self._looked = [np.zeros(0, np.int64)]  # and of those whose values were looked at
        self._sum = self._looked_rows = self._looked_bytes = 0

    @property
    def bytes(self) -> int:
        """Bytes of the tensors counted so far, by the mean row of those that were looked at."""
        return self.rows * self._looked_bytes // max(1, self._looked_rows)

    def add(self, batch: Batch) -> bool:
        """Takes a batch; True when a group has been counted."""
        self._group.append(batch)
        if len(self._group) < self._limit:
            return False
        self.flush()
        return True

    def flush(self) -> None:
        """Counts the batches that wait."""
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
        """Raises ValueError unless the rows are the table's, none twice, and all of them if whole."""
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
