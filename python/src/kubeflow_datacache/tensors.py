# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""numpy columns as torch tensors, over the same memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kubeflow_datacache.arrays import Array


class Column:
    """A column that is given step by step, with tensors where it has numpy arrays.

    Tensors share the column's memory and may be written to; datetime64 and timedelta64 become int64 in their unit.
    """

    def __init__(self, column: Any) -> None:
        self._column = column
        self._whole, self._size = None, 0  # all steps' rows, and how many are a step's
        if isinstance(column, np.ndarray):
            steps, self._size, *shape = column.shape
            self._whole = _tensor(column.reshape(steps * self._size, *shape))

    def steps(self, first: int, last: int) -> Sequence[Any]:
        """The steps [first, last)."""
        if self._whole is None:
            parts = [self._column[i] for i in range(first, last)]
            return [_tensor(part) if isinstance(part, np.ndarray) else part for part in parts]
        # Not unbind, which makes every step a view that autograd follows, at twice the cost: these steps do not
        # overlap, and nobody has the tensor that they are parts of.
        rows = self._whole[first * self._size : last * self._size]
        return rows.unsafe_split_with_sizes([self._size] * (last - first))


def _tensor(array: Array) -> Any:
    import torch  # pyright: ignore[reportMissingImports] - only where tensors are asked for

    if array.dtype.kind in "Mm":
        array = array.view(np.int64)
    return torch.from_numpy(np.asarray(_Writable(array)))


class _Writable:
    """Shows a read-only array as writable: torch knows no read-only tensors and would warn.

    The memory belongs to this process alone; rows of other batches are not in reach of a batch's tensors.
    """

    def __init__(self, array: Array) -> None:
        self._array = array
        self.__array_interface__ = {**array.__array_interface__, "data": (array.ctypes.data, False)}
