# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: the model, the loader's position, and the totals of the epoch so far."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from demo.model import Ints, Model
from kubeflow_datacache import Loader


@dataclass
class EpochTotals:
    """Totals of one epoch over all ranks."""

    seen: Ints  # number of occurrences of each id
    rows: int
    loss: float
    right: int

    @classmethod
    def new(cls, rows: int) -> EpochTotals:
        """The totals at the start of an epoch."""
        return cls(np.zeros(rows, np.int64), 0, 0.0, 0)

    def add(self, ids: Ints, loss: float, right: int) -> None:
        """Adds one rank's rows of a step."""
        np.add.at(self.seen, ids, 1)
        self.rows, self.loss, self.right = (
            self.rows + len(ids),
            self.loss + loss,
            self.right + right,
        )

    @property
    def accuracy(self) -> float:
        """The fraction of rows that were classified correctly."""
        return self.right / max(self.rows, 1)

    def __str__(self) -> str:
        return f"loss {self.loss / max(self.rows, 1):.4f}  accuracy {self.accuracy:.2%}"


class Checkpoint:
    """A folder with one file per epoch; the last file is the current checkpoint. Files are written atomically."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(self, model: Model, loader: Loader, totals: EpochTotals) -> None:
        """Saves the current state. The state of one rank's loader is valid for all ranks."""
        state = loader.state_dict()
        words = json.dumps(
            {
                "loader": state,
                "rows": totals.rows,
                "loss": totals.loss,
                "right": totals.right,
                "updates": model.updates,
            }
        )
        parts: dict[str, Any] = {f"part{i}": part for i, part in enumerate(model.parts())}
        whole = self._file(state["epoch"])
        with (whole.with_suffix(".tmp")).open("wb") as file:
            np.savez(file, words=np.array(words), seen=totals.seen, **parts)
        whole.with_suffix(".tmp").replace(whole)

    def load(self, model: Model, loaders: list[Loader]) -> EpochTotals | None:
        """Restores the model and the loaders from the last checkpoint; returns None if there is none."""
        epochs = sorted(self._folder.glob("epoch-*.npz"))
        if not epochs:
            return None
        words, arrays = self._read(epochs[-1])
        for part, saved in zip(
            model.parts(),
            (arrays[f"part{i}"] for i in range(len(model.parts()))),
            strict=True,
        ):
            part[:] = saved
        model.updates = words["updates"]
        for loader in loaders:
            loader.load_state_dict(words["loader"])
        return self._totals(words, arrays)

    def totals(self, epoch: int) -> EpochTotals:
        """The totals of a completed epoch."""
        return self._totals(*self._read(self._file(epoch)))

    def position(self) -> tuple[int, int]:
        """Epoch and next step of the last checkpoint; (0, 0) before the first."""
        epochs = sorted(self._folder.glob("epoch-*.npz"))
        if not epochs:
            return 0, 0
        state = self._read(epochs[-1])[0]["loader"]
        return state["epoch"], state["next_step"]

    def _file(self, epoch: int) -> Path:
        return self._folder / f"epoch-{epoch:03}.npz"

    @staticmethod
    def _read(file: Path) -> tuple[dict[str, Any], dict[str, Any]]:
        with np.load(file) as arrays:
            return json.loads(str(arrays["words"])), dict(arrays)

    @staticmethod
    def _totals(words: dict[str, Any], arrays: dict[str, Any]) -> EpochTotals:
        return EpochTotals(arrays["seen"].copy(), words["rows"], words["loss"], words["right"])
