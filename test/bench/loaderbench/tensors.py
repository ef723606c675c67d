# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Converts Arrow rows to torch tensors that share their memory, for all loaders with documented Arrow output."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import torch  # pyright: ignore[reportMissingImports] - in the peers' environment alone
from torch.utils.data import default_collate  # pyright: ignore[reportMissingImports] - in the peers' environment alone


def of_rows(rows: pa.RecordBatch) -> dict[str, Any]:
    """Converts numbers to shape (rows,), lists of equal length to (rows, length), bytes to a list of one tensor per
    row."""
    return {name: of_column(rows.column(i)) for i, name in enumerate(rows.schema.names)}


def of_table(rows: pa.Table) -> dict[str, Any]:
    """The same for a table, whose columns may be chunked."""
    return {name: of_column(_one(column)) for name, column in zip(rows.column_names, rows.columns, strict=True)}


def of_column(array: Any) -> Any:
    """The same for one Arrow array."""
    type_ = array.type
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_):
        return torch.from_numpy(array.flatten().to_numpy().reshape(len(array), -1))
    if pa.types.is_binary(type_) or pa.types.is_large_binary(type_):
        return _bytes(array)
    return torch.from_numpy(array.to_numpy())


def collate(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Collates rows of a loader to a batch: torch's default_collate, except for bytes."""
    return {name: _collate([row[name] for row in rows]) for name in rows[0]}


def _collate(values: list[Any]) -> Any:
    first = values[0]
    if isinstance(first, bytes):
        return of_bytes(values)
    if isinstance(first, torch.Tensor) and first.dtype == torch.uint8:
        return values
    return default_collate(values)


def of_bytes(rows: list[bytes]) -> list[torch.Tensor]:
    """Converts rows of bytes to tensors."""
    return [torch.from_numpy(np.frombuffer(row, np.uint8)) for row in rows]


def _bytes(array: Any) -> list[torch.Tensor]:
    width = np.dtype(np.int64 if pa.types.is_large_binary(array.type) else np.int32)
    offsets = np.frombuffer(array.buffers()[1], width, len(array) + 1, array.offset * width.itemsize)
    first, last = int(offsets[0]), int(offsets[-1])
    items = torch.from_numpy(np.frombuffer(array.buffers()[2], np.uint8, last - first, first))
    return list(items.split(np.diff(offsets).tolist()))


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
