# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""TableDataset: a cache's rows as a map-style torch dataset."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, SupportsIndex, overload

import pyarrow as pa
from torch.utils.data import Dataset, default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from kubeflow_datacache.rows.arrays import Null, Policy, Ragged
from kubeflow_datacache.rows.indexing import is_row, rows_of
from kubeflow_datacache.selection import Readable
from kubeflow_datacache.table import Table
from kubeflow_datacache.torch.batch import Columns


class TableDataset(Table, Dataset[Any]):
    """A Table of tensors: the rows of a cache, a Selection or a Table by position, for
    DataLoader(TableDataset(cache), batch_size=128, shuffle=True) and its samplers.

    A batch is fetched with one request and returned as Columns, also by torch's default collate_fn; so is dataset[[3,
    1, 2]], for batch_size=None with a BatchSampler as the sampler. dataset[3] returns a Row.

    transform gets an Arrow record batch and returns one, or a mapping of columns, or a list with one sample per row.
    null, ragged: see LoaderOptions.

    Random access costs the servers and the network far more than a StreamingDataset, which also shuffles. The
    constructor asks the head for the number of rows, and gRPC does not survive a fork: use
    multiprocessing_context="forkserver" or "spawn" for workers (otherwise ForkedError).
    """

    _policy: Policy

    def __init__(
        self,
        cache: Readable | Table,
        *,
        columns: Sequence[str] | None = None,
        transform: Callable[[pa.RecordBatch], Any] | None = None,
        null: Null = "error",
        ragged: Ragged = "error",
    ) -> None:
        state = cache.table(columns=columns, transform=transform).__getstate__()
        self.__setstate__({**state, "_policy": Policy(null, ragged)})

    def __getitem__(self, index: SupportsIndex | slice | Iterable[SupportsIndex]) -> Any:
        """A Row, or the Columns of several rows; the transform's result if that is not columns."""
        if is_row(index):
            return self.__getitems__([operator.index(index)])[0]  # pyright: ignore[reportArgumentType] - is_row
        rows = self.__getitems__(index)  # pyright: ignore[reportArgumentType] - is_row
        return rows.columns if isinstance(rows, ColumnarRows) else rows

    def __getitems__(self, indices: slice | Iterable[SupportsIndex]) -> Any:
        """The rows at the indices, in that order. Slices, masks, negative numbers and duplicates work as in numpy."""
        asked = rows_of(indices, len(self))
        rows = super().__getitems__(asked)
        if isinstance(rows, pa.RecordBatch):
            return ColumnarRows(Columns.of(rows, self._policy), rows.num_rows)
        return ColumnarRows(Columns(rows), len(asked)) if isinstance(rows, Mapping) else rows


class Row(dict[str, Any]):
    """One row: tensors for columns that are tensors, otherwise Python values."""


class ColumnarRows(Sequence[Row]):
    """A sequence of rows stored as columns. torch's default collate_fn returns the columns; other functions may read
    rows."""

    def __init__(self, columns: Columns, count: int) -> None:
        self.columns, self._count = columns, count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._count))]
        if not -self._count <= index < self._count:
            raise IndexError(f"row {index} of {self._count}")
        return Row({name: _value(column[index]) for name, column in self.columns.items()})

    def __iter__(self) -> Iterator[Row]:
        return (self[i] for i in range(self._count))


def _value(value: Any) -> Any:
    return value.as_py() if isinstance(value, pa.Scalar) else value


def _collate(rows: Sequence[Row], *, collate_fn_map: object = None) -> Any:
    """Registered with torch's default_collate (see "in-place modify default_collate_fn_map" in its documentation)."""
    if isinstance(rows, ColumnarRows):
        return rows.columns
    return default_collate([dict(row) for row in rows])


default_collate_fn_map[Row] = _collate
