# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Widens integers that a cache sent in a shorter type than the table's."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.types as kind

from kubeflow_datacache.rows.arrays import offsets, raw_values
from kubeflow_datacache.rows.heap import HEAP

_WIDE: Final = b"datacache.wide"  # key of metadata


def widened(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The rows with the types of a schema. Only columns of other types are copied."""
    if rows.schema.types == schema.types:
        return rows
    columns = [_widened(column, field.type) for column, field in zip(rows.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def marked(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The rows as they are, and in the metadata the schema that another process will widen them to."""
    if rows.schema.types == schema.types:
        return rows
    return rows.replace_schema_metadata({_WIDE: schema.serialize().to_pybytes()})


def as_marked(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows that marked() returned, widened."""
    told = (rows.schema.metadata or {}).get(_WIDE)
    return rows if told is None else widened(rows, pa.ipc.read_schema(pa.py_buffer(told)))


def alike(parts: list[pa.RecordBatch], schema: pa.Schema) -> list[pa.RecordBatch]:
    """Parts of equal types: as they are, or, if they differ, with those of a schema.

    A stream that is opened again while a data node loads its rows has the table's types.
    """
    if all(part.schema.equals(parts[0].schema) for part in parts[1:]):
        return parts
    return [widened(part, schema) for part in parts]


def _widened(array: pa.Array, type_: pa.DataType) -> pa.Array:
    if array.type == type_:
        return array
    if array.null_count:
        return array.cast(type_)
    rows = len(array)
    if kind.is_integer(type_):
        values = raw_values(array, _dtype(array.type))
        assert values is not None
        body, memory = HEAP.allocate(rows * type_.byte_width)
        np.copyto(np.frombuffer(memory, _dtype(type_)), values)
        return pa.Array.from_buffers(type_, rows, [None, body])
    if kind.is_fixed_size_list(type_):
        items = array.values.slice(array.offset * type_.list_size, rows * type_.list_size)
        return pa.Array.from_buffers(type_, rows, [None], children=[_widened(items, type_.value_type)])
    ends = offsets(array)
    first = ends[0]
    items = _widened(array.values.slice(first, ends[-1] - first), type_.value_type)
    return pa.Array.from_buffers(type_, rows, [None, pa.py_buffer(ends - first)], children=[items])


def _dtype(type_: pa.DataType) -> np.dtype[Any]:
    return np.dtype(type_.to_pandas_dtype())
