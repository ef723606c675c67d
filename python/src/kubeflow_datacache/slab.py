# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows of consecutive steps in one record batch: what batches are views of."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa

from kubeflow_datacache import arrays
from kubeflow_datacache.arrays import Array

_TENSOR_STEPS: Final = 64  # made at once: in one call a column, and few enough to stay in the core's cache


class Slab:
    """`size` rows of each of `steps`, in order. Columns are converted once for all steps, when first asked for."""

    def __init__(self, steps: range, size: int, rows: pa.RecordBatch) -> None:
        self.steps, self.size, self.rows = steps, size, rows
        self.nbytes: int = rows.nbytes
        self.step_bytes = self.nbytes // len(steps)
        self._names: list[str] = rows.schema.names
        self._tensors: tuple[int, list[tuple[Any, ...]]] = (0, [])  # of steps from an index on, by column

    def arrow(self, index: int) -> pa.RecordBatch:
        """The rows of the index-th step."""
        return self.rows.slice(index * self.size, self.size)

    def numpy(self, index: int) -> dict[str, Array | pa.Array]:
        """The columns of the index-th step (see arrays.values)."""
        return {name: steps[index] for name, steps in self._columns}

    def torch(self, index: int) -> dict[str, Any]:
        """The columns of the index-th step, tensors where numpy would have numbers."""
        first, steps = self._tensors
        if not first <= index < first + len(steps):
            first, steps = self._tensors = index, self._tensors_of(index)
        return dict(zip(self._names, steps[index - first], strict=True))

    def _tensors_of(self, first: int) -> list[tuple[Any, ...]]:
        """The columns of each of some steps."""
        last = min(first + _TENSOR_STEPS, len(self.steps))
        columns = [column.steps(first, last) for column in self._tensor_columns]
        return list(zip(*columns, strict=True)) if columns else [()] * (last - first)

    @functools.cached_property
    def _columns(self) -> list[tuple[str, Any]]:
        """Each column as something that gives a step's part by the step's index."""
        return [(name, self._steps_of(self.rows.column(i), name)) for i, name in enumerate(self._names)]

    @functools.cached_property
    def _tensor_columns(self) -> list[Any]:
        from kubeflow_datacache import tensors

        return [tensors.Column(column) for _, column in self._columns]

    def _steps_of(self, array: pa.Array, name: str) -> Any:
        if _differ(array):
            return _Steps(array, self.size, lambda part: arrays.values(part, name))
        whole = arrays.values(array, name)
        if isinstance(whole, np.ndarray):
            return whole.reshape(len(self.steps), self.size, *whole.shape[1:])
        return _Steps(array, self.size, None)


def _differ(array: pa.Array) -> bool:
    """Whether some steps of a column may be numpy and others not."""
    return bool(array.null_count) or (arrays.listed(array.type) and arrays.length(array) is None)


class _Steps:
    """A column that stays Arrow, or of which each step is converted for itself, whatever its neighbours are."""

    def __init__(self, array: pa.Array, size: int, convert: Callable[[pa.Array], Array | pa.Array] | None) -> None:
        self._array, self._size, self._convert = array, size, convert

    def __getitem__(self, index: int) -> Array | pa.Array:
        part = self._array.slice(index * self._size, self._size)
        return part if self._convert is None else self._convert(part)
