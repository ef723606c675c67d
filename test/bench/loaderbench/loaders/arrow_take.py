# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A memory-mapped Arrow file and pyarrow's take: what one writes oneself for an exact shuffle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchlib.tables import Table
from loaderbench import tensors
from loaderbench.case import ALWAYS, Case
from loaderbench.loaders.hf_map import Map

FIRST_USE = ALWAYS
_ROWS = 1000  # of a record batch, as Hugging Face datasets write them


def prepare(table: Table, data: Path) -> None:
    """Writes one Arrow file of all files."""
    data.mkdir()
    schema = pq.read_schema(table.files[0]).remove_metadata()
    with pa.OSFile(str(data / "rows.arrow"), "wb") as out, pa.ipc.new_file(out, schema) as writer:
        for path in table.files:
            for batch in pq.ParquetFile(path).iter_batches(_ROWS):
                writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=schema))


def open(case: Case) -> Map:
    """A DataLoader with a BatchSampler."""
    return Map(Rows(case.data / "rows.arrow"), case, tensors.of_table)


class Rows:
    """The rows of a file, by lists of their numbers."""

    def __init__(self, path: Path) -> None:
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        self._batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
        self._starts = np.concatenate([[0], np.cumsum([len(batch) for batch in self._batches])])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, numbers: list[int]) -> pa.Table:
        """Takes from each record batch by itself: take of a whole table would copy columns of lists and bytes first."""
        wanted = np.asarray(numbers)
        found = np.searchsorted(self._starts, wanted, side="right") - 1
        order = np.argsort(found, kind="stable")
        parts = list[pa.RecordBatch]()
        for batch in np.unique(found):
            parts.append(
                self._batches[batch].take(pa.array(wanted[order][found[order] == batch] - self._starts[batch]))
            )
        return pa.Table.from_batches(parts).combine_chunks().take(pa.array(np.argsort(order)))
