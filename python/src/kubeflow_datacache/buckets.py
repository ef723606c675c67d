# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Length buckets: micro-batches of rows of similar length. The rows of a step stay the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kind

from kubeflow_datacache.arguments import check_callable, check_int
from kubeflow_datacache.errors import ColumnError
from kubeflow_datacache.rows.arrays import is_fixed_width_list


class LengthBuckets:
    """A transform that splits a batch into micro-batches by row length: LengthBuckets("tokens", 4, Pad({"tokens": 0})).

    by: the column whose length counts: lists, strings or binary; a null has length 0. batches: the number of
    micro-batches per batch. They are returned as a list, longest rows first, so that an out-of-memory error shows up in
    the first step. Their row counts differ by at most one; some are empty if the batch has fewer rows, so every rank
    gets the same number. then: a function applied to each micro-batch, such as Pad, which then pads only to the longest
    row of that micro-batch; None returns record batches.

    For gradient accumulation: add up the micro-batches' losses, each weighted by its number of rows, and step once. A
    rank trains on the same rows in each step as without buckets, so states, resuming and changes of the world size work
    as usual. Rows of equal length keep their order. Picklable if `then` is. Raises ColumnError if the column does not
    exist.
    """

    def __init__(self, by: str, batches: int, then: Callable[[pa.RecordBatch], Any] | None = None) -> None:
        self._by, self._batches, self._then = by, check_int("batches", batches, 1), check_callable(then, "then")

    def __call__(self, rows: pa.RecordBatch) -> list[Any]:
        """Returns the micro-batches, longest rows first."""
        if self._by not in rows.schema.names:
            raise ColumnError(f"LengthBuckets: {self._by!r} is no column of the batch; there are {rows.schema.names}")
        order = np.argsort(-_lengths(self._by, rows[self._by]), kind="stable")
        parts = [rows.take(pa.array(part)) for part in np.array_split(order, self._batches)]
        return parts if self._then is None else [self._then(part) for part in parts]


def _lengths(name: str, column: pa.Array) -> npt.NDArray[np.int64]:
    if is_fixed_width_list(column.type):
        lengths = pc.list_value_length(column)
    elif kind.is_string(column.type) or kind.is_large_string(column.type):
        lengths = pc.utf8_length(column)
    elif kind.is_binary(column.type) or kind.is_large_binary(column.type):
        lengths = pc.binary_length(column)
    else:
        raise ColumnError(f"LengthBuckets: column {name!r} is {column.type}, want lists, strings or binary")
    return pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False).astype(np.int64)
