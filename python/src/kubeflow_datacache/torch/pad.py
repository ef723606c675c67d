# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Pad: pads lists of different lengths to one tensor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kind
import torch
from torch import Tensor

from kubeflow_datacache.errors import ColumnError
from kubeflow_datacache.rows.arrays import DEFAULT, is_fixed_width_list
from kubeflow_datacache.torch.batch import Columns


class Pad:
    """A transform that pads lists of numbers to the longest of the batch: transform=Pad({"tokens": 0}).

    values: {column: padding value}; other columns are not changed. length: cuts lists to this length and pads to
    exactly this length. multiple_of: rounds the width up to a multiple, for tensor cores. masks: whether to add a
    boolean column NAME_mask per padded column, True for its values and False for padding. A null list becomes an empty
    one.

    Results have shape (rows, width). Pass it to a loader or dataset as transform=; it is picklable. Raises ColumnError
    for a column that does not exist, is not a list of numbers, or contains null numbers.
    """

    def __init__(
        self, values: dict[str, float], *, length: int | None = None, multiple_of: int = 1, masks: bool = True
    ) -> None:
        if multiple_of < 1 or (length is not None and length < 1):
            raise ValueError(f"length = {length}, multiple_of = {multiple_of}: want at least 1")
        self._values, self._length, self._multiple, self._masks = dict(values), length, multiple_of, masks

    def __call__(self, rows: pa.RecordBatch) -> Columns:
        """Returns the padded columns of a batch."""
        if missing := [name for name in self._values if name not in rows.schema.names]:
            raise ColumnError(f"Pad: {missing[0]!r} is no column of the batch; there are {rows.schema.names}")
        kept = [name for name in rows.schema.names if name not in self._values]
        columns: dict[str, Any] = dict(Columns.of(rows.select(kept), DEFAULT)) if kept else {}
        for name, value in self._values.items():
            columns[name], mask = self._padded(name, rows[name], value)
            if self._masks:
                columns[f"{name}_mask"] = mask
        return Columns(columns)

    def _padded(self, name: str, lists: pa.Array, value: float) -> tuple[Tensor, Tensor]:
        if not is_fixed_width_list(lists.type) or not (
            kind.is_integer(lists.type.value_type) or kind.is_floating(lists.type.value_type)
        ):
            raise ColumnError(f"Pad: column {name!r} is {lists.type}, want lists of numbers")
        if self._length is not None:
            lists = pc.list_slice(lists, 0, self._length, return_fixed_size_list=False)
        lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
        flat = lists.flatten()  # null lists are left out
        if flat.null_count:
            raise ColumnError(f"Pad: column {name!r} has {flat.null_count} null numbers: fill them in a transform")
        width = self._length or int(lengths.max(initial=0))
        width = -(-width // self._multiple) * self._multiple
        mask = np.arange(width) < lengths[:, None]
        out = np.full((len(lists), width), value, flat.type.to_pandas_dtype())
        out[mask] = flat.to_numpy()
        return torch.from_numpy(out), torch.from_numpy(mask)
