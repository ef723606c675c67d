# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""MosaicML streaming: MDS shards, read row by row and batched by its StreamingDataLoader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from streaming import MDSWriter, StreamingDataLoader, StreamingDataset  # pyright: ignore[reportMissingImports] - in the peers' environment alone
from streaming.base.util import clean_stale_shared_memory  # pyright: ignore[reportMissingImports] - in the peers' environment alone

from benchlib.tables import SEQUENCE, Table
from loaderbench import rows, tensors
from loaderbench.case import BATCH, NEVER, SEED, Batch, Case

FIRST_USE = NEVER  # an abandoned iterator continues for a while

_ENCODINGS = {"tokens": f"ndarray:int32:{SEQUENCE}", "image": "bytes"}


def prepare(table: Table, data: Path) -> None:
    """Writes uncompressed shards, without hashes."""
    columns = {name: _ENCODINGS.get(name, "float64" if name[0] == "f" else "int64") for name in rows.names(table)}
    with MDSWriter(out=str(data), columns=columns, compression=None, hashes=None) as writer:
        for row in rows.of(table):
            writer.write(row)


def open(case: Case) -> Mosaic:
    """Local shards with default options."""
    return Mosaic(case)


class Mosaic:
    """Resumes with the StreamingDataLoader's state."""

    def __init__(self, case: Case) -> None:
        clean_stale_shared_memory()  # left by earlier measurements
        dataset = StreamingDataset(local=str(case.data), shuffle=case.shuffle, shuffle_seed=SEED, batch_size=BATCH)
        self._loader = StreamingDataLoader(
            dataset, batch_size=BATCH, num_workers=case.workers, collate_fn=tensors.collate
        )

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._loader)

    def state(self) -> Any:
        return self._loader.state_dict()

    def restore(self, state: Any) -> None:
        self._loader.load_state_dict(state)

    def close(self) -> None:
        pass
