# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Micro-batches of token sequences, for trainers that accumulate gradients over the rows of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from kubeflow_datacache.errors import ColumnError
from kubeflow_datacache.loader import Loader
from kubeflow_datacache.rows.batch import Batch


@dataclass(frozen=True, kw_only=True)
class Sequences:
    """Which columns hold token sequences of a length.

    tokens: the column of lists of `length + 1` tokens, of which inputs and labels are the first and the last `length`.
    labels: a column with labels of their own, None for that; both columns then have lists of `length`.
    """

    tokens: str
    labels: str | None
    length: int

    @property
    def columns(self) -> list[str]:
        """The columns to read."""
        return [self.tokens] if self.labels is None else [self.tokens, self.labels]

    def of(self, columns: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """Inputs and labels of a batch, int64, shape (rows, length)."""
        if self.labels is not None:
            return self._column(columns, self.tokens, self.length), self._column(columns, self.labels, self.length)
        tokens = self._column(columns, self.tokens, self.length + 1)
        return tokens[:, :-1], tokens[:, 1:]

    def _column(self, columns: Mapping[str, Any], name: str, width: int) -> Tensor:
        column: Any = columns[name]
        if not isinstance(column, Tensor) or column.ndim != 2:
            raise ColumnError(f"column {name!r}: want lists of {width} token numbers")
        if column.shape[1] != width and len(column):
            plus = "the sequence length + 1, as labels are the next tokens" if self.labels is None else "as inputs have"
            raise ColumnError(f"column {name!r} has {column.shape[1]} tokens a row, want {width}: {plus}")
        return column.long()


class MicroBatches:
    """A rank's micro-batches of `rows` rows of one step after the other; if `infinite`, epoch after epoch.

    whole: whether the last returned micro-batch was the last of its step, which the loader's state counts as done.
    check: called with the batch of each step, before its last micro-batch is returned.
    """

    def __init__(
        self,
        loader: Loader,
        sequences: Sequences,
        *,
        rows: int,
        global_batch_size: int,
        infinite: bool = True,
        check: Callable[[Batch], object] | None = None,
    ) -> None:
        ranks = loader.world.size
        if rows < 1 or global_batch_size % (ranks * rows):
            raise ValueError(
                f"global_batch_size = {global_batch_size} is no multiple of {ranks} data-parallel ranks times"
                f" micro-batches of {rows} rows"
            )
        if not loader.steps:
            raise ValueError(f"global_batch_size = {global_batch_size}: an epoch has no steps, as it has fewer rows")
        self.loader, self.whole = loader, True
        self._sequences, self._rows, self._infinite, self._check = sequences, rows, infinite, check

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            for batch in self.loader:
                inputs, labels = self._sequences.of(batch.torch())
                for begin in range(0, batch.num_rows, self._rows):
                    end = begin + self._rows
                    self.whole = end == batch.num_rows
                    if self.whole and self._check is not None:
                        self._check(batch)
                    yield inputs[begin:end], labels[begin:end]
            if not self._infinite:
                return
