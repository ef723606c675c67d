# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Converts columns to torch tensors that share their memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as kind

from kubeflow_datacache.errors import ColumnError
from kubeflow_datacache.rows.arrays import Array


class Column:
    """A column by step, `size` rows each; tensors where numpy would return numbers.

    by_numpy: returns the column as a sequence of numpy or Arrow arrays by step index. name: for error messages. plain:
    whether the column is converted to tensors. steps() raises ColumnError for values that tensors cannot represent.
    Tensors share the column's memory and are writable; datetime64 and timedelta64 become int64 in their unit.
    """

    def __init__(self, array: pa.Array, size: int, by_numpy: Callable[[], Any], *, name: str, plain: bool) -> None:
        self._size, self._name = size, name
        self._whole = _numbers(array) if plain else None  # the rows of all steps
        self._column: Any = by_numpy() if self._whole is None else None
        if isinstance(self._column, np.ndarray):
            self._whole = _tensor(self._column.reshape(len(array), *self._column.shape[2:]))

    def steps(self, first: int, last: int) -> Sequence[Any]:
        """The values of steps [first, last)."""
        if self._whole is None:
            parts = [self._column[i] for i in range(first, last)]
            return [self._tensor_of(part) if isinstance(part, np.ndarray) else part for part in parts]
        # Not unbind, whose results are views tracked by autograd, at twice the cost. This is safe: the steps do not
        # overlap, and nothing else uses the tensor they are parts of.
        rows = self._whole[first * self._size : last * self._size]
        return rows.unsafe_split_with_sizes([self._size] * (last - first))

    def _tensor_of(self, part: Array) -> Any:
        if part.dtype.kind in "Mm" and np.isnat(part).any():
            raise ColumnError(
                f"column {self._name!r} ({part.dtype}) has nulls, and a tensor of integers has none: fill them in a"
                ' transform (pyarrow.compute.fill_null), use null="zero" or null="arrow", or take numpy() of the batch'
            )
        return _tensor(part)


def with_tensors(columns: Mapping[Any, Any]) -> dict[Any, Any]:
    """Columns with numpy arrays of numbers, bools and times as tensors; others stay as they are."""
    return {
        name: _tensor(column) if isinstance(column, np.ndarray) and column.dtype.kind in "biufcMm" else column
        for name, column in columns.items()
    }


def cast_tensors(columns: Mapping[Any, Any], casts: Mapping[str, str]) -> dict[Any, Any]:
    """Columns with those that casts names in its dtypes, on the device where they are."""
    import torch  # pyright: ignore[reportMissingImports] - only where tensors are asked for

    out = dict(columns)
    for name, dtype in casts.items():
        column = out.get(name)
        if not isinstance(column, torch.Tensor):
            was = f"is {type(column).__name__}, which is no tensor" if name in out else f"is none of {list(out)}"
            raise ColumnError(f"cast = {dict(casts)}: column {name!r} {was}: name columns of numbers")
        out[name] = column.to(getattr(torch, dtype))
    return out


def _numbers(array: pa.Array) -> Any:
    """Converts a numeric column directly, which is cheaper than through numpy; None for any other column."""
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
    """Presents a read-only array as writable: torch has no read-only tensors and would warn.

    Only this process uses the memory, and a batch's tensors do not overlap rows of other batches.
    """

    def __init__(self, array: Array) -> None:
        self._array = array
        shown = array.__array_interface__
        self.__array_interface__ = {**shown, "data": (shown["data"][0], False)}
