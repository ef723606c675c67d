# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the consumer does: holds every row that a loader hands over to the table, and takes no part in the figures."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt

from loaderbench.case import Batch

# Batches are looked at in groups of so many bytes or batches: small enough to leave loaders their memory.
GROUP_BYTES, GROUP_BATCHES = 1 << 20, 32


class Check:
    """Counts what it is given and adds up every tensor's bits (of lists and bytes: the first and last item of a row).

    rows, bytes: of the groups looked at so far. cpu: what that took of this thread, to be left out of a loader's
    figures.
    """

    def __init__(self, ids: str) -> None:
        self.rows = self.bytes = 0
        self.cpu = 0.0
        self._ids, self._sum = ids, 0
        self._seen = [np.zeros(0, np.int64)]
        self._group: list[Batch] = []
        self._limit = 1

    def add(self, batch: Batch) -> bool:
        """Takes a batch; True when a group has been looked at."""
        self._group.append(batch)
        if len(self._group) < self._limit:
            return False
        self.flush()
        return True

    def flush(self) -> None:
        """Looks at the batches that wait."""
        start = time.thread_time()
        group, self._group = self._group, []
        before = self.bytes
        for name in group[0] if group else ():
            self._column(name, [batch[name] for batch in group])
        if group:
            self._limit = min(GROUP_BATCHES, 1 + GROUP_BYTES * len(group) // (self.bytes - before))
        self.cpu += time.thread_time() - start

    def verify(self, truth: npt.NDArray[np.int64], whole: bool) -> None:
        """Raises ValueError unless the rows are the table's, none twice, and all of them if whole."""
        ids = np.concatenate(self._seen)
        if twice := len(ids) - len(np.unique(ids)):
            raise ValueError(f"{twice} of {len(ids)} rows came twice")
        if whole and len(ids) != len(truth):
            raise ValueError(f"{len(ids)} rows of {len(truth)} came in a whole epoch")
        if (self._sum - int(truth[ids].sum())) % 2**64:
            raise ValueError(f"the sums over {len(ids)} rows are not the table's")

    def _column(self, name: str, parts: list[Any]) -> None:
        if isinstance(parts[0], list):
            rows = [_array(row, np.uint8) for part in parts for row in part]
            self.bytes += sum(row.nbytes for row in rows)
            self._sum += sum(int(row[0]) + int(row[-1]) for row in rows)
            return
        arrays = [_array(part, np.int64, np.int32, np.float64) for part in parts]
        self.bytes += sum(array.nbytes for array in arrays)
        whole = np.concatenate([array if array.ndim == 1 else array[:, [0, -1]] for array in arrays])
        bits = whole.view(np.int64) if whole.dtype == np.float64 else whole
        self._sum += int(bits.sum(dtype=np.int64))
        if name == self._ids:
            self.rows += len(bits)
            self._seen.append(bits)


def _array(tensor: Any, *allowed: type) -> npt.NDArray[Any]:
    array = np.asarray(tensor)
    if array.dtype not in allowed:
        raise TypeError(f"a column came as {array.dtype}, which the table does not have")
    return array
