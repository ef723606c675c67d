# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""StepBlock: the rows of several steps in one record batch, of which batches are views."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from kubeflow_datacache.errors import ColumnError
from kubeflow_datacache.rows import arrays
from kubeflow_datacache.rows.arrays import DEFAULT, Array, Policy

# number of steps converted at once: one call per column, and few enough to stay in the CPU cache
_TENSOR_STEPS: Final = 64


class StepBlock:
    """The rows of `steps` in order, `size` rows per step. Columns are converted for all steps at once, on first use."""

    def __init__(self, steps: range, size: int, rows: pa.RecordBatch, policy: Policy = DEFAULT) -> None:
        self.steps, self.size, self.rows, self.policy = steps, size, rows, policy
        self.nbytes: int = rows.nbytes
        self.step_bytes = self.nbytes // len(steps)
        # tensors of steps that were converted but not requested yet, by step index
        self._made: dict[int, dict[str, Any]] = {}

    @functools.cached_property
    def without_rows(self) -> StepBlock:
        """The block with its sizes but without its rows; batches keep it after a transform has replaced their rows."""
        empty = pa.RecordBatch.from_pylist([], schema=self.rows.schema)
        block = StepBlock(self.steps, self.size, empty, self.policy)
        block.nbytes, block.step_bytes = self.nbytes, self.step_bytes
        return block

    def arrow(self, index: int, count: int = 1) -> pa.RecordBatch:
        """The rows of the index-th step, or of `count` steps from there."""
        return self.rows.slice(index * self.size, count * self.size)

    def numpy(self, index: int) -> dict[str, Array | pa.Array]:
        """The columns of the index-th step as numpy arrays (see arrays.values)."""
        return {name: steps[index] for name, steps in self._columns}

    def torch(self, index: int) -> dict[str, Any]:
        """The columns of the index-th step; tensors where numpy() returns numbers."""
        return self._made.pop(index, None) or self._make(index)

    def _make(self, first: int) -> dict[str, Any]:
        """Converts a step's columns to tensors, and those of the following steps, which costs little more."""
        last = min(first + _TENSOR_STEPS, len(self.steps))
        try:
            return self._make_until(first, last)
        except ColumnError:  # another step may be invalid: convert only this one
            return self._make_until(first, first + 1)

    def _make_until(self, first: int, last: int) -> dict[str, Any]:
        made: list[dict[str, Any]] = [{} for _ in range(first, last)]
        for name, column in self._tensor_columns:
            for step, part in zip(made, column.steps(first, last), strict=True):
                step[name] = part
        self._made = dict(enumerate(made[1:], first + 1))
        return made[0]

    @functools.cached_property
    def _columns(self) -> list[tuple[str, Any]]:
        """For each column, a sequence of its values by step index."""
        fields = zip(self.rows.schema, self.rows.columns, strict=True)
        return [(field.name, self._steps_of(array, field)) for field, array in fields]

    @functools.cached_property
    def _tensor_columns(self) -> list[tuple[str, Any]]:
        from kubeflow_datacache.rows import tensors

        def column(field: pa.Field, array: pa.Array) -> tensors.Column:
            numbers = not arrays.stays_arrow(field, self.policy)
            return tensors.Column(
                array, self.size, lambda: self._steps_of(array, field), name=field.name, plain=numbers
            )

        return [
            (field.name, column(field, array)) for field, array in zip(self.rows.schema, self.rows.columns, strict=True)
        ]

    def _steps_of(self, array: pa.Array, field: pa.Field) -> Any:
        if arrays.stays_arrow(field, self.policy):
            return _Steps(array, self.size, None)
        if _differ(array):
            return _Steps(array, self.size, lambda part: arrays.values(part, field, self.policy))
        whole = arrays.values(array, field, self.policy)
        return whole.reshape(len(self.steps), self.size, *whole.shape[1:])


def _differ(array: pa.Array) -> bool:
    """Whether only some steps of a column may fail to convert."""
    array = array.storage if isinstance(array, pa.ExtensionArray) else array
    if array.null_count or not arrays.is_fixed_width_list(array.type):
        return bool(array.null_count)
    if not len(array) or (alike := arrays.equal_length_lists(array)) is None:
        return bool(len(array))
    return (leaves := arrays.leaves(alike[1])) is None or bool(leaves[1].null_count)


class _Steps:
    """The values of a column by step index: as Arrow arrays, or converted for each step separately."""

    def __init__(self, array: pa.Array, size: int, convert: Callable[[pa.Array], Array | pa.Array] | None) -> None:
        self._array, self._size, self._convert = array, size, convert

    def __getitem__(self, index: int) -> Array | pa.Array:
        part = self._array.slice(index * self._size, self._size)
        return part if self._convert is None else self._convert(part)
