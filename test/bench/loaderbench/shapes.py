# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The loader bench's tables. Each has a column with row numbers, so that every batch can be checked.

The number of rows in each file is a multiple of the batch size, so that the handling of an incomplete batch has no
effect.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from benchlib import tables
from benchlib.tables import SEQUENCE, Shape, Table
from loaderbench.case import BATCH

# The column with the row number.
IDS = {"tokens": "label", "tabular": "i0", "images": "label"}
NUMBERS = 4  # int64 columns of "tabular" after the row number, followed by as many float64 columns


def _tokens(rng: np.random.Generator, first: int, rows: int) -> list[pa.Array]:
    return [tables.tokens(rng, first, rows)[0], _numbers(first, rows)]


def _tabular(rng: np.random.Generator, first: int, rows: int) -> list[pa.Array]:
    ints = [pa.array(rng.integers(0, 1 << 40, rows)) for _ in range(NUMBERS)]
    return [_numbers(first, rows), *ints, *(pa.array(rng.standard_normal(rows)) for _ in range(NUMBERS))]


def _images(rng: np.random.Generator, first: int, rows: int) -> list[pa.Array]:
    return [tables.images(rng, first, rows)[0], _numbers(first, rows)]


def _numbers(first: int, rows: int) -> pa.Array:
    return pa.array(np.arange(first, first + rows))


SHAPES = {
    "tokens": Shape(
        260_096, 16_384, pa.schema([("tokens", pa.list_(pa.int32())), (IDS["tokens"], pa.int64())]), _tokens, BATCH
    ),
    "tabular": Shape(
        7_424_000,
        524_288,
        pa.schema(
            [(f"i{i}", pa.int64()) for i in range(NUMBERS + 1)] + [(f"f{i}", pa.float64()) for i in range(NUMBERS)]
        ),
        _tabular,
        BATCH,
    ),
    "images": Shape(25_600, 2_048, pa.schema([("image", pa.binary()), (IDS["images"], pa.int64())]), _images, BATCH),
}


def truth(table: Table) -> npt.NDArray[np.int64]:
    """The expected sum of check.Check for each row number; computed from the files once and cached beside them."""
    kept = Path(table.metadata).parents[1] / "truth.npy"
    if not kept.exists():
        sums = np.zeros(table.rows, np.int64)
        for file in table.files:
            rows = pq.read_table(file)
            sums[rows[IDS[table.name]].to_numpy()] = _row_sums(rows)
        np.save(kept, sums)
    return np.load(kept, mmap_mode="r")


def _row_sums(rows: pa.Table) -> npt.NDArray[np.int64]:
    """For each row, the sum modulo 2^64 of the bits of its numbers and of its list's first and last item."""
    sums = np.zeros(rows.num_rows, np.int64)
    for column in rows.combine_chunks().columns:
        array = column.chunk(0)
        if pa.types.is_primitive(array.type):
            sums += array.to_numpy().view(np.int64)
        elif pa.types.is_list(array.type):
            items = array.flatten().to_numpy().reshape(-1, SEQUENCE)
            sums += items[:, 0].astype(np.int64) + items[:, -1]
        else:
            offsets = np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, array.offset * 4)
            items = np.frombuffer(array.buffers()[2], np.uint8)
            sums += items[offsets[:-1]].astype(np.int64) + items[offsets[1:] - 1]
    return sums
