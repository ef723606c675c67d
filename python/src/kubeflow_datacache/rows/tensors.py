# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Columns as torch tensors, over the same memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as kind

from kubeflow_datacache.errors import ColumnError
from kubeflow_datacache.rows.arrays import Array


class Column:
    """A column that is given step by step, `size` rows each, with tensors where numpy would have numbers.

    by_numpy: the column as something that gives a step's numpy or Arrow array by the step's index. name: for errors.
    plain: whether it is tensors at all. steps raises ColumnError for what tensors can't hold.
    Tensors share the column's memory and may be written to; datetime64 and timedelta64 become int64 in their unit.
    """

    def __init__(self, array: pa.Array, size: int, by_numpy: Callable[[], Any], *, name: str, plain: bool) -> None:
        self._size, self._name = size, name
        self._whole = _numbers(array) if plain else None  # all steps' rows
        self._column: Any = by_numpy() if self._whole is None else None
        if isinstance(self._column, np.ndarray):
            self._whole = _tensor(self._column.reshape(len(array), *self._column.shape[2:]))

    def steps(self, first: int, last: int) -> Sequence[Any]:
        """The steps [first, last)."""
        if self._whole is None:
            parts = [self._column[i] for i in range(first, last)]
            return [self._tensor_of(part) if isinstance(part, np.ndarray) else part for part in parts]
        # Not unbind, which makes every step a view that autograd follows, at twice the cost: these steps do not
        # overlap, and nobody has the tensor that they are parts of.
        rows = self._whole[first * self._size : last * self._size]
        return rows.unsafe_split_with_sizes([self._size] * (last - first))

    def _tensor_of(self, part: Array) -> Any:
        if part.dtype.kind in "Mm" and np.isnat(part).any():
            raise ColumnError(
                f"column {self._name!r} ({part.dtype}) has nulls, and a tensor of integers has none: fill them in a"
                ' transform (pyarrow.compute.fill_null), use null="zero" or null="arrow", or take numpy() of the batch'
            )
        return _tensor(part)


def _numbers(array: pa.Array) -> Any:
    """A column of numbers as a tensor, without the detour over numpy, which costs more; None for any other column."""
    import torch  # pyright: ignore[reportMissingImports] - only where tensors are asked for

    if not len(array) or array.null_count or not (kind.is_integer(array.type) or kind.is_floating(array.type)):
        return None
    return torch.from_dlpack(array)


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
        shown = array.__array_interface__
        self.__array_interface__ = {**shown, "data": (shown["data"][0], False)}
