# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Batches of tensors."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor
from torch.utils.data._utils.collate import default_collate_fn_map

from kubeflow_datacache.errors import ColumnError
from kubeflow_datacache.rows.arrays import DEFAULT, Policy
from kubeflow_datacache.rows.batch import Batch, is_mixed, tensors_of
from kubeflow_datacache.rows.block import StepBlock
from kubeflow_datacache.rows.tensors import cast_tensors
from kubeflow_datacache.torch.packing import Layout, pack, unpack


class Columns(dict[str, Any]):
    """Columns by name: CPU tensors whose first dimension is the row, or Arrow arrays for types that torch lacks.

    Without a copy, tensors share memory with the received rows: numbers, lists of numbers of equal length, and
    timestamps, times and durations as integers in their unit. Bools, dates (as days) and floats with nulls (as NaN) are
    copied. Strings, binary, decimals, structs and lists of them stay Arrow arrays. The dataset's options null and
    ragged (see Loader) say what happens to other nulls and to lists of different lengths; the default is ColumnError.

    Pickled for another process, all tensors of a batch use one block of shared memory.
    """

    @classmethod
    def of(cls, rows: pa.RecordBatch, policy: Policy) -> Columns:
        """Converts a record batch."""
        return Columns(StepBlock(range(1), rows.num_rows, rows, policy).torch(0))

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Self:
        """Returns a copy with the tensors on the device; Arrow arrays stay the same."""
        moved = {
            name: value.to(device, non_blocking=non_blocking) if isinstance(value, Tensor) else value
            for name, value in self.items()
        }
        return type(self)(moved, **self.metadata())

    def __copy__(self) -> Self:
        return type(self)(self, **self.metadata())

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpacked, (type(self), *pack(self), self.metadata())

    def metadata(self) -> dict[str, Any]:
        """The constructor's other arguments, for copies."""
        return {}


class TensorBatch(Columns):
    """One rank's rows of one step, as tensors.

    epoch, step: the batch's position. num_rows: the number of rows; 0 if the world is larger than the batch. weight:
    see Batch.weight.

    Frameworks may rebuild batches as type(batch)(mapping) with other columns. Then epoch, step, num_rows and weight are
    None, and valid and source raise. to() keeps them.
    """

    def __init__(
        self,
        columns: Mapping[Any, Any] = MappingProxyType({}),
        *,
        epoch: int | None = None,
        step: int | None = None,
        num_rows: int | None = None,
        weight: float | None = None,
        padded: int = 0,
        sources: RowSources | None = None,
    ) -> None:
        super().__init__(columns)
        self.epoch, self.step, self.num_rows = epoch, step, num_rows
        self.weight, self._padded, self._sources = weight, padded, sources

    @property
    def valid(self) -> Tensor:
        """Boolean mask, shape (num_rows,): False for the repeated rows with which tail "pad" fills the last step."""
        if self.num_rows is None:
            raise ValueError(
                "valid: this batch was rebuilt from its columns alone, by a framework that moved it to a device; take"
                " valid in a transform or before, or use a tail other than pad"
            )
        return torch.arange(self.num_rows) < self.num_rows - self._padded

    @property
    def source(self) -> Tensor:
        """In a Mixture, the part of each row, counted from 0 in its order; otherwise zeros. int16,
        shape (num_rows,)."""
        if self.num_rows is None:
            raise ValueError("source: this batch was rebuilt from its columns alone; take source before that")
        return (
            torch.zeros(self.num_rows, dtype=torch.int16)
            if self._sources is None
            else torch.from_numpy(self._sources())
        )

    def metadata(self) -> dict[str, Any]:
        """Epoch, step, number of rows, weight, number of padding rows, and the rows' parts."""
        position = {"epoch": self.epoch, "step": self.step, "num_rows": self.num_rows}
        return {**position, "weight": self.weight, "padded": self._padded, "sources": self._sources}


class RowSources:
    """The part of a mixture of each row of a batch, computed when it is called; pickled as an array."""

    def __init__(self, batch: Batch | npt.NDArray[np.int16]) -> None:
        self._batch = batch

    def __call__(self) -> npt.NDArray[np.int16]:
        """The part of each row, shape (num_rows,)."""
        if not isinstance(self._batch, np.ndarray):
            self._batch = self._batch.source
        return self._batch

    def __reduce__(self) -> tuple[Any, ...]:
        return RowSources, (self(),)


def item_of(batch: Batch, *, pads: bool) -> Any:
    """Converts a batch to what training code gets: a TensorBatch, or the transform's result if that is not columns.

    pads: whether the last step may contain padding. The loader's option cast is left to cast_item.
    """
    if not (batch.data is None or isinstance(batch.data, pa.RecordBatch | Mapping)):
        return batch.data
    padded = batch.num_rows - int(np.count_nonzero(batch.valid)) if pads else 0
    sources = RowSources(batch) if is_mixed(batch) else None
    return TensorBatch(
        tensors_of(batch),
        epoch=batch.epoch,
        step=batch.step,
        num_rows=batch.num_rows,
        weight=batch.weight,
        padded=padded,
        sources=sources,
    )


def cast_item(item: Any, casts: Mapping[str, str]) -> Any:
    """Applies the loader's option cast to an item of item_of."""
    if not casts:
        return item
    if not isinstance(item, Columns):
        raise ColumnError(
            f"cast = {dict(casts)}: the transform returned {type(item).__name__}, which has no columns: return a record"
            " batch or a mapping of columns, or leave cast out"
        )
    return type(item)(cast_tensors(item, casts), **item.metadata())


def _collate(rows: Any, *, collate_fn_map: object = None) -> Columns:
    """Registered with torch's default_collate (see "in-place modify default_collate_fn_map" in its documentation)."""
    del collate_fn_map
    if not isinstance(rows, pa.RecordBatch):
        raise TypeError(
            f"a batch of {type(rows[0]).__name__}: convert Arrow arrays in a collate_fn, or use TableDataset"
        )
    return Columns.of(rows, DEFAULT)


# The rows that a Table returns to a DataLoader are one record batch, a sequence of Arrow arrays.
default_collate_fn_map[pa.Array] = _collate


def _unpacked(of: type[Columns], memory: Tensor, layout: Layout, metadata: dict[str, Any]) -> Columns:
    return of(unpack(memory, layout), **metadata)
