# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows of about one length together, without moving a row to another step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kind

from kubeflow_datacache.errors import ColumnError
from kubeflow_datacache.options import function_of, whole
from kubeflow_datacache.rows.arrays import listed


class LengthBuckets:
    """A transform that cuts a batch into micro-batches by length: LengthBuckets("tokens", 4, Pad({"tokens": 0})).

    by: a column of lists, strings or binary; a null has length 0. batches: how many micro-batches each batch becomes, a
    list of them, those of the longest rows first, so that memory runs out in the first step if it does. Their rows
    differ in number by at most one, and some are empty where a batch has fewer rows: every rank makes as many. then: a
    function of each micro-batch, such as Pad, which then pads to the longest of few rows alike; None gives record
    batches.

    For gradient accumulation: add up the micro-batches' losses, each weighed by its rows, and step once. Which rows a
    rank trains on in a step stays as it was without, and so do states, resuming and changes of the world size; rows of
    one length keep their order. It pickles if `then` does. ColumnError where there is no such column.
    """

    def __init__(self, by: str, batches: int, then: Callable[[pa.RecordBatch], Any] | None = None) -> None:
        self._by, self._batches, self._then = by, whole("batches", batches, 1), function_of(then)

    def __call__(self, rows: pa.RecordBatch) -> list[Any]:
        """The micro-batches, longest rows first."""
        if self._by not in rows.schema.names:
            raise ColumnError(f"LengthBuckets: {self._by!r} is no column of the batch; there are {rows.schema.names}")
        order = np.argsort(-_lengths(self._by, rows[self._by]), kind="stable")
        parts = [rows.take(pa.array(part)) for part in np.array_split(order, self._batches)]
        return parts if self._then is None else [self._then(part) for part in parts]


def _lengths(name: str, column: pa.Array) -> npt.NDArray[np.int64]:
    if listed(column.type):
        lengths = pc.list_value_length(column)
    elif kind.is_string(column.type) or kind.is_large_string(column.type):
        lengths = pc.utf8_length(column)
    elif kind.is_binary(column.type) or kind.is_large_binary(column.type):
        lengths = pc.binary_length(column)
    else:
        raise ColumnError(f"LengthBuckets: column {name!r} is {column.type}, want lists, strings or binary")
    return pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False).astype(np.int64)
