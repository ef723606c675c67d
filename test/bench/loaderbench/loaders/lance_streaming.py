# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""LanceDB's StreamingDataset: a Lance table in fixed splits, one row at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lancedb  # pyright: ignore[reportMissingImports] - in the peers' environment alone
import pyarrow as pa
import pyarrow.dataset as ds
from lancedb.streaming import StreamingDataLoader, StreamingDataset  # pyright: ignore[reportMissingImports] - in the peers' environment alone

from benchlib.tables import SEQUENCE, Table
from loaderbench import tensors
from loaderbench.case import ALONE, BATCH, SEED, Batch, Case

SPLITS = 8
FIRST_USE = ALONE  # Lance's threads do not survive a fork

NAME = "bench"


def prepare(table: Table, data: Path) -> None:
    """Writes one Lance table of all files, with lists of equal length as fixed-size lists, which it stores best."""
    dataset = ds.dataset(table.files)
    fields = [pa.field(f.name, _stored(f.type)) for f in dataset.schema]
    schema = pa.schema(fields)
    batches = (batch.cast(schema) for batch in dataset.to_batches(batch_size=8192))
    lancedb.connect(str(data)).create_table(NAME, pa.RecordBatchReader.from_batches(schema, batches))


def _stored(type_: pa.DataType) -> pa.DataType:
    return pa.list_(type_.value_type, SEQUENCE) if pa.types.is_list(type_) else type_


def open(case: Case) -> Streaming:
    """Its loader with a transform from Arrow to tensors, on its default threads."""
    return Streaming(case)


class Streaming:
    """Resumes with the dataset's state."""

    def __init__(self, case: Case) -> None:
        self._rows = StreamingDataset(
            lancedb.connect(str(case.data)).open_table(NAME),
            num_splits=SPLITS,
            shuffle=case.shuffle,
            shuffle_seed=SEED,
            transform=_tensors,
        )
        fork_free = {"multiprocessing_context": "forkserver"} if case.workers else {}
        self._loader = StreamingDataLoader(
            self._rows, batch_size=BATCH, num_workers=case.workers, collate_fn=tensors.collate, **fork_free
        )

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._loader)

    def state(self) -> Any:
        return self._rows.state_dict()

    def restore(self, state: Any) -> None:
        self._rows.load_state_dict(state)

    def close(self) -> None:
        pass


def _tensors(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    columns = tensors.of_rows(batch)
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
