# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""numpy columns as torch tensors, over the same memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kubeflow_datacache.arrays import Array


def steps_of(column: Any, steps: int) -> Sequence[Any]:
    """A column, given step by step, with tensors where it has numpy arrays.

    Tensors share the column's memory and may be written to; datetime64 and timedelta64 become int64 in their unit.
    """
    if isinstance(column, np.ndarray):
        return _tensor(column).unbind(0)
    parts = [column[i] for i in range(steps)]
    return [_tensor(part) if isinstance(part, np.ndarray) else part for part in parts]


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
