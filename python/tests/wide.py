# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""An Iceberg table of wide rows whose values are derived from the row index."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from lake import Lake

ROWS, WIDTH, FILES = 60_000, 500, 6
SCHEMA = pa.schema([("id", pa.int64()), ("tokens", pa.list_(pa.int32())), ("text", pa.string())])


def wide_table(lake: Lake, rows: int = ROWS) -> str:
    """Writes a table with `rows` rows and returns its metadata file."""
    cuts = np.linspace(0, rows, min(FILES, rows) + 1).astype(int).tolist()
    parts = [rows_of(np.arange(lo, hi)) for lo, hi in itertools.pairwise(cuts)]
    made = lake.create("wide", SCHEMA, [pa.Table.from_batches([part]) for part in parts])
    return made.metadata_location


def tokens_of(ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """The token column, shape (rows, WIDTH)."""
    return (ids[:, None] * 31 + np.arange(WIDTH)).astype(np.int32)


def rows_of(ids: npt.NDArray[np.int64]) -> pa.RecordBatch:
    """The rows at these indices."""
    ends = np.arange(0, (len(ids) + 1) * WIDTH, WIDTH, dtype=np.int32)
    tokens = pa.ListArray.from_arrays(ends, pa.array(tokens_of(ids).reshape(-1)))
    text = pa.array([f"text of row {i}" for i in ids.tolist()])
    return pa.RecordBatch.from_arrays([pa.array(ids.astype(np.int64)), tokens, text], schema=SCHEMA)
