# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Columns of rows as torch code takes them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from kubeflow_datacache.rows.arrays import Policy
from kubeflow_datacache.rows.batch import Batch
from kubeflow_datacache.rows.slab import Slab
from kubeflow_datacache.torch.memory import Layout, pack, unpack


class Columns(dict[str, Any]):
    """Columns by name: CPU tensors with the rows first, Arrow arrays where torch has no such dtype.

    Tensors share the memory that the rows arrived in: numbers, and equally long lists of numbers, without a copy;
    timestamps, times and durations too, as integers in their unit; bools, dates (as days) and floats with nulls (NaN)
    are copied. Strings, binary, decimals, structs and lists of them stay Arrow arrays. Other nulls, and lists of
    different lengths, are as the dataset's null and ragged say (see Loader): by default a ColumnError.

    A dict that travels between processes as one piece of shared memory.
    """

    @classmethod
    def of(cls, rows: pa.RecordBatch, policy: Policy) -> Columns:
        """The columns of a record batch."""
        return Columns(Slab(range(1), rows.num_rows, rows, policy).torch(0))

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Self:
        """A copy whose tensors are on the device; Arrow arrays stay as they are."""
        moved = {
            name: value.to(device, non_blocking=non_blocking) if isinstance(value, Tensor) else value
            for name, value in self.items()
        }
        return type(self)(moved, **self.place())

    def __copy__(self) -> Self:
        return type(self)(self, **self.place())

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpacked, (type(self), *pack(self), self.place())

    def place(self) -> dict[str, int | None]:
        """What belongs to it beside its columns."""
        return {}


class TensorBatch(Columns):
    """One rank's rows of one step.

    epoch, step: where it stands. rows: how many rows; none where the world is larger than the batch.

    Frameworks rebuild batches as type(batch)(mapping), with columns of their own: epoch, step and rows are None then,
    and valid is an error. to() keeps them.
    """

    def __init__(
        self,
        columns: Mapping[Any, Any] = MappingProxyType({}),
        *,
        epoch: int | None = None,
        step: int | None = None,
        rows: int | None = None,
        padded: int = 0,
    ) -> None:
        super().__init__(columns)
        self.epoch, self.step, self.rows = epoch, step, rows
        self._padded = padded

    @property
    def valid(self) -> Tensor:
        """Which rows count, bool, (rows,): all, except that tail "pad" fills the last step with rows given before."""
        if self.rows is None:
            raise ValueError(
                "valid: this batch was rebuilt from its columns alone, by a framework that moved it to a device; take"
                " valid in a transform or before, or use a tail other than pad"
            )
        return torch.arange(self.rows) < self.rows - self._padded

    def place(self) -> dict[str, int | None]:
        """Epoch, step, rows and how many of them are padding."""
        return {"epoch": self.epoch, "step": self.step, "rows": self.rows, "padded": self._padded}


def item_of(batch: Batch, *, pads: bool) -> Any:
    """What the training code gets for a batch: a TensorBatch, or what the transform made if that is no columns.

    pads: whether the epoch's tail may hold padding.
    """
    if batch.data is None or isinstance(batch.data, pa.RecordBatch):
        columns: Mapping[Any, Any] = batch.torch()
    elif isinstance(batch.data, Mapping):
        columns = batch.data
    else:
        return batch.data
    padded = batch.rows - int(np.count_nonzero(batch.valid)) if pads else 0
    return TensorBatch(columns, epoch=batch.epoch, step=batch.step, rows=batch.rows, padded=padded)


def _unpacked(of: type[Columns], memory: Tensor, layout: Layout, place: dict[str, int | None]) -> Columns:
    return of(unpack(memory, layout), **place)
