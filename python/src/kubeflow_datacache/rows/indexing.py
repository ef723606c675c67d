# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Table indices with numpy's semantics."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any, cast

import numpy as np
import numpy.typing as npt

RowIndices = npt.NDArray[np.int64]


def is_row(index: Any) -> bool:
    """Whether an index is a single integer, rather than a slice, mask or sequence."""
    if isinstance(index, bool | np.bool_):
        raise TypeError(f"index {index!r} is one bool: want a row's number, a slice, or a mask as long as the table")
    return hasattr(index, "__index__") and getattr(index, "ndim", 0) == 0


def rows_of(indices: Any, length: int) -> RowIndices:
    """Converts a slice, integers or a boolean mask to row numbers of a table of `length` rows, in that order.

    Negative numbers count from the end. Raises IndexError for rows outside the table and for masks of another length,
    and TypeError for anything else.
    """
    if isinstance(indices, slice):
        return np.arange(length, dtype=np.int64)[indices]
    asked = _array(indices)
    if asked.ndim != 1:
        raise IndexError(f"indices of {asked.ndim} dimensions: want one")
    if asked.dtype == np.bool_:
        if len(asked) != length:
            raise IndexError(f"a mask of {len(asked)} bools for a table of {length} rows: want one a row")
        return np.flatnonzero(asked).astype(np.int64)
    if asked.dtype.kind not in "iu":
        raise TypeError(f"indices of type {asked.dtype}: want whole numbers, or a mask of bools")
    beyond = asked >= length if asked.dtype.kind == "u" else (asked < -length) | (asked >= length)
    if beyond.any():
        raise IndexError(f"row {asked[beyond][0]} is outside the table of {length} rows")
    rows = asked.astype(np.int64)
    return np.where(rows < 0, rows + length, rows)


def _array(indices: Any) -> npt.NDArray[Any]:
    if isinstance(indices, np.ndarray):
        return indices
    if hasattr(indices, "__array__"):  # CPU tensors, pandas and Arrow columns
        return np.asarray(indices)
    if isinstance(indices, str | bytes) or not isinstance(indices, Iterable):
        raise TypeError(f"positions = {indices!r}: want whole numbers, a slice, or a mask of bools")
    asked = list(cast("Iterable[Any]", indices))
    if asked and all(isinstance(index, bool | np.bool_) for index in asked):
        return np.array(asked, np.bool_)
    for index in asked:
        if isinstance(index, bool | np.bool_):
            raise TypeError("indices mix bools and numbers: want whole numbers, or a mask of bools")
    return np.array([operator.index(index) for index in asked], np.int64)
