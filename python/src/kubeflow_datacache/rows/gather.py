# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows of several record batches in another order, in one pass over the bytes where their width is fixed."""

from __future__ import annotations

import functools
import itertools
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kind

from kubeflow_datacache.order.plan import Places
from kubeflow_datacache.rows.arrays import listed, lists, offsets, plain, raw, worded
from kubeflow_datacache.rows.heap import HEAP

_WORDS: Final = (1, 2, 4, 8)
_SMALL_SHARE: Final = 8  # of a message, one part in so many is copied
_LONG: Final = 2048  # bytes of a mean row, from which a copy costs more than a turn of a loop in Python


def empty(schema: pa.Schema) -> pa.RecordBatch:
    """A record batch without rows."""
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def concatenate(parts: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """The rows of the parts laid end to end. One part is passed on as it is, without a copy."""
    if not parts:
        return empty(schema)
    if len(parts) == 1:
        return parts[0]
    columns = [pa.concat_arrays([part.column(i) for part in parts]) for i in range(len(schema))]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def detach_small(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows of a message, with the small columns in memory of their own: keeping one keeps nothing else.

    The smallest columns are copied, as long as they are together no more than an eighth of all.
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
    """Brings rows of several parts into one order: the i-th row of all parts laid end to end becomes row places[i].

    Columns of up to 8 bytes are laid end to end, which is little beside the cost of a row, and taken in the new order.
    Wider ones, and lists of equal length, are written straight to their places; so are long strings and bytes, row by
    row in Python, which costs less than another copy. The others, and those with nulls, are taken by Arrow.
    """

    def __init__(self, parts: list[pa.RecordBatch], places: Places) -> None:
        self._parts, self._places = parts, places
        self._rows = len(places)
        bounds = np.cumsum([0, *(part.num_rows for part in parts)])
        self._targets = [places[lo:hi] for lo, hi in itertools.pairwise(bounds)]

    def batch(self) -> pa.RecordBatch:
        """The rows in their new order."""
        schema = self._parts[0].schema
        columns = [self._column([part.column(i) for part in self._parts], field.type) for i, field in enumerate(schema)]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _column(self, arrays: list[pa.Array], type_: pa.DataType) -> pa.Array:
        moved = None
        if plain(type_):
            moved = self._plain(arrays, type_)
        elif listed(type_):
            moved = self._lists(arrays, type_)
        elif worded(type_):
            moved = self._words(arrays, type_)
        if moved is not None:
            return moved
        laid = pa.concat_arrays(arrays)
        return pc.take(laid, pa.array(self._order), boundscheck=False)

    @functools.cached_property
    def _order(self) -> Places:
        """Which of the rows laid end to end comes at each place."""
        order = np.empty(self._rows, np.intp)
        order[self._places] = np.arange(self._rows)
        return order

    def _plain(self, arrays: list[pa.Array], type_: pa.DataType) -> pa.Array | None:
        body = self._move(arrays, type_.byte_width)
        return None if body is None else pa.Array.from_buffers(type_, self._rows, [None, body])

    def _lists(self, arrays: list[pa.Array], type_: pa.DataType) -> pa.Array | None:
        alike = [got for array in arrays if (got := lists(array)) is not None]
        size = alike[0][0] if alike else 0
        if not size or len(alike) < len(arrays) or any(other != size for other, _ in alike):
            return None
        body = self._move([values for _, values in alike], type_.value_type.byte_width * size)
        if body is None:
            return None
        rows = self._rows
        child = pa.Array.from_buffers(type_.value_type, rows * size, [None, body])
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
        """The plain values of the arrays, so many bytes a row, in the rows' new order; None for nulls."""
        dtype = np.dtype(f"u{width}" if width in _WORDS else f"V{width}")
        views = [view for array in arrays if (view := raw(array, dtype)) is not None]
        if len(views) < len(arrays):
            return None
        body, memory = HEAP.allocate(self._rows * width)
        out = np.frombuffer(memory, dtype)
        if width in _WORDS:
            np.concatenate(views).take(self._order, out=out, mode="clip")  # mode "raise" would copy once more
            return body
        for target, view in zip(self._targets, views, strict=True):
            out[target] = view
        return body
