# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Reorders the rows of several record batches; fixed-width columns are copied only once."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kind

from kubeflow_datacache.order.plan import Destinations
from kubeflow_datacache.rows.arrays import (
    equal_length_lists,
    is_binary_like,
    is_fixed_width,
    is_fixed_width_list,
    leaf_type,
    leaves,
    offsets,
    raw_values,
)
from kubeflow_datacache.rows.heap import HEAP

_WORDS: Final = (1, 2, 4, 8)
_SMALL_SHARE: Final = 8  # at most 1/8 of a message's bytes is copied
_LONG: Final = 2048  # mean bytes per value from which a copy costs more than an iteration of a Python loop


def empty(schema: pa.Schema) -> pa.RecordBatch:
    """An empty record batch."""
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def concatenate(parts: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Concatenates the parts, whose types are equal. A single part is returned unchanged, without a copy. schema: that
    of no parts."""
    if not parts:
        return empty(schema)
    if len(parts) == 1:
        return parts[0]
    columns = [pa.concat_arrays([part.column(i) for part in parts]) for i in range(parts[0].num_columns)]
    return pa.RecordBatch.from_arrays(columns, schema=parts[0].schema)


def detach_small(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Copies the small columns of a message to memory of their own, so that keeping one does not keep the whole
    message.

    Copies the smallest columns whose total is at most an eighth of the message.
    """
    columns = rows.columns
    sizes = [column.nbytes for column in columns]
    room = sum(sizes) // _SMALL_SHARE
    for i in sorted(range(len(columns)), key=sizes.__getitem__):
        room -= sizes[i]
        if room < 0:
            break
        columns[i] = pa.concat_arrays([columns[i]])
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)


class Gather:
    """Reorders rows: row i of the concatenated parts becomes row destinations[i].

    Columns of up to 8 bytes per row are concatenated, which is cheap compared with the cost per row, and reordered.
    Wider columns and lists of equal length are written directly to their destinations; so are long strings and binary
    values, in a Python loop over rows, which costs less than a second copy. Other columns, and columns with nulls, use
    Arrow's take.
    """

    def __init__(self, parts: list[pa.RecordBatch], destinations: Destinations) -> None:
        self._parts, self._destinations = parts, destinations
        self._rows = len(destinations)
        bounds = np.cumsum([0, *(part.num_rows for part in parts)])
        self._targets = [destinations[lo:hi] for lo, hi in itertools.pairwise(bounds)]

    def batch(self) -> pa.RecordBatch:
        """The rows in their new order."""
        schema = self._parts[0].schema
        columns = [self._column([part.column(i) for part in self._parts], field.type) for i, field in enumerate(schema)]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _column(self, arrays: list[pa.Array], type_: pa.DataType) -> pa.Array:
        if isinstance(type_, pa.BaseExtensionType):
            stored = self._column([array.storage for array in arrays], type_.storage_type)
            return pa.ExtensionArray.from_storage(type_, stored)
        moved = None
        if is_fixed_width(type_):
            moved = self._plain(arrays, type_)
        elif is_fixed_width_list(type_):
            moved = self._lists(arrays, type_)
        elif is_binary_like(type_):
            moved = self._words(arrays, type_)
        if moved is not None:
            return moved
        laid = pa.concat_arrays(arrays)
        return pc.take(laid, pa.array(self._order), boundscheck=False)

    @functools.cached_property
    def _order(self) -> Destinations:
        """The inverse of destinations: for each output row, its index in the concatenated parts."""
        order = np.empty(self._rows, np.intp)
        order[self._destinations] = np.arange(self._rows)
        return order

    def _plain(self, arrays: list[pa.Array], type_: pa.DataType) -> pa.Array | None:
        body = self._move(arrays, type_.byte_width)
        return None if body is None else pa.Array.from_buffers(type_, self._rows, [None, body])

    def _lists(self, arrays: list[pa.Array], type_: pa.DataType) -> pa.Array | None:
        alike = [got for array in arrays if (got := equal_length_lists(array)) is not None]
        size = alike[0][0] if alike else 0
        if not size or len(alike) < len(arrays) or any(other != size for other, _ in alike):
            return None
        inner = [got for _, values in alike if (got := leaves(values)) is not None]
        if len(inner) < len(alike):
            return None
        width = leaf_type(type_.value_type).byte_width * size * math.prod(inner[0][0])
        body = self._move([values for _, values in inner], width)
        if body is None:
            return None
        rows = self._rows
        child = _nested(type_.value_type, rows * size, body)
        if kind.is_fixed_size_list(type_):
            return pa.Array.from_buffers(type_, rows, [None], children=[child])
        ends = np.arange(0, (rows + 1) * size, size).astype(np.int64 if kind.is_large_list(type_) else np.int32)
        return pa.Array.from_buffers(type_, rows, [None, pa.py_buffer(ends)], children=[child])

    def _words(self, arrays: list[pa.Array], type_: pa.DataType) -> pa.Array | None:
        if any(array.null_count for array in arrays):
            return None
        bounds = [offsets(array) for array in arrays]
        sizes = np.empty(self._rows, np.int64)
        for target, old in zip(self._targets, bounds, strict=True):
            sizes[target] = np.diff(old)
        ends = np.concatenate([[0], np.cumsum(sizes)])
        if ends[-1] < _LONG * self._rows or ends[-1] > np.iinfo(bounds[0].dtype).max:
            return None
        body, out = HEAP.allocate(int(ends[-1]))
        for target, old, array in zip(self._targets, bounds, arrays, strict=True):
            values = array.buffers()[2]
            data = memoryview(b"" if values is None else values).cast("B")
            for at, (first, last) in zip(ends[target].tolist(), itertools.pairwise(old.tolist()), strict=True):
                out[at : at + last - first] = data[first:last]
        return pa.Array.from_buffers(type_, self._rows, [None, pa.py_buffer(ends.astype(bounds[0].dtype)), body])

    def _move(self, arrays: list[pa.Array], width: int) -> pa.Buffer | None:
        """Copies fixed-width values, `width` bytes per row, to their destinations; None if there are nulls."""
        dtype = np.dtype(f"u{width}" if width in _WORDS else f"V{width}")
        views = [view for array in arrays if (view := raw_values(array, dtype)) is not None]
        if len(views) < len(arrays):
            return None
        body, memory = HEAP.allocate(self._rows * width)
        out = np.frombuffer(memory, dtype)
        if width in _WORDS:
            np.concatenate(views).take(self._order, out=out, mode="clip")  # mode "raise" would make another copy
            return body
        for target, view in zip(self._targets, views, strict=True):
            out[target] = view
        return body


def _nested(type_: pa.DataType, length: int, body: pa.Buffer) -> pa.Array:
    """An array of fixed-width values, or of fixed-size lists of these, without nulls."""
    if not kind.is_fixed_size_list(type_):
        return pa.Array.from_buffers(type_, length, [None, body])
    child = _nested(type_.value_type, length * type_.list_size, body)
    return pa.Array.from_buffers(type_, length, [None], children=[child])
