# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Iterates over a table's rows, to write formats of loaders that work row by row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow.dataset as ds

from benchlib.tables import SEQUENCE, Table


def names(table: Table) -> list[str]:
    """The column names."""
    return ds.dataset(table.files).schema.names


def of(table: Table) -> Iterator[dict[str, Any]]:
    """Yields every row as ints, floats, bytes, and lists as numpy arrays."""
    return of_files(table.files)


def of_files(files: list[str]) -> Iterator[dict[str, Any]]:
    """The rows of some files."""
    for batch in ds.dataset(files).to_batches(batch_size=1024):
        columns = [_values(column) for column in batch.columns]
        for row in zip(*columns, strict=True):
            yield dict(zip(batch.schema.names, row, strict=True))


def _values(column: Any) -> Any:
    if hasattr(column, "flatten") and hasattr(column.type, "value_type"):
        return column.flatten().to_numpy().reshape(-1, SEQUENCE)
    return column.to_pylist()
