# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""LitData: chunks in its own format, read row by row and batched by its StreamingDataLoader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch  # pyright: ignore[reportMissingImports] - in the peers' environment alone
from litdata import StreamingDataLoader, StreamingDataset, optimize  # pyright: ignore[reportMissingImports] - in the peers' environment alone

from benchlib.tables import Table
from loaderbench import rows, tensors
from loaderbench.case import ALWAYS, BATCH, SEED, Batch, Case

FIRST_USE = ALWAYS


def prepare(table: Table, data: Path) -> None:
    """Writes chunks of 64 MB, as in the documentation."""
    optimize(fn=_rows, inputs=table.files, output_dir=str(data), chunk_bytes="64MB", num_workers=1, verbose=False)


def _rows(file: str) -> Iterator[dict[str, Any]]:
    for row in rows.of_files([file]):
        yield {k: torch.from_numpy(v.copy()) if hasattr(v, "dtype") else v for k, v in row.items()}


def open(case: Case) -> Lit:
    """The loader of the documentation."""
    return Lit(case)


class Lit:
    """Resumes with the StreamingDataLoader's state."""

    def __init__(self, case: Case) -> None:
        dataset = StreamingDataset(str(case.data), shuffle=case.shuffle, seed=SEED, drop_last=False)
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
