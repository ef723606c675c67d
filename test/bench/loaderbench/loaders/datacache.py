# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Ours: kubeflow_datacache with `cacheserver local`; CPU of the server counts in addition to the client's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubeflow_datacache  # pyright: ignore[reportMissingImports] - from python/src, which has checks of its own
from benchlib.tables import Table
from loaderbench import tensors
from loaderbench.case import ALWAYS, BATCH, SEED, Batch, Case

FIRST_USE = ALWAYS


def prepare(table: Table, data: Path) -> None:
    """Does nothing: the server reads the table's own files."""


def open(case: Case) -> Ours:
    """Without workers, our Loader; with workers, our torch DataLoader."""
    return Ours(case)


class Ours:
    """Resumes with the loader's own state."""

    def __init__(self, case: Case) -> None:
        self._cache = kubeflow_datacache.DataCache(case.uri)
        words: dict[str, Any] = {
            "global_batch_size": BATCH,
            "seed": SEED,
            "shuffle": case.shuffle,
            "tail": "keep",
        }
        self._loader: Any = _with_workers(self._cache, case, words) if case.workers else self._cache.loader(**words)
        self._workers = case.workers

    def __iter__(self) -> Iterator[Batch]:
        batches = iter(self._loader) if self._workers else (batch.torch() for batch in self._loader)
        return map(_bytes, batches)

    def state(self) -> dict[str, Any]:
        return self._loader.state_dict()

    def restore(self, state: dict[str, Any]) -> None:
        self._loader.load_state_dict(state)

    def close(self) -> None:
        self._cache.close()


def _with_workers(cache: Any, case: Case, words: dict[str, Any]) -> Any:
    from kubeflow_datacache import torch  # pyright: ignore[reportMissingImports] - as above

    return torch.StreamingDataLoader(torch.StreamingDataset(cache, **words), num_workers=case.workers)


def _bytes(batch: Batch) -> Batch:
    """Converts columns that the loader leaves in Arrow to the bench's lists of tensors."""
    if "image" not in batch:
        return batch
    return {**batch, "image": tensors.of_column(batch["image"])}
