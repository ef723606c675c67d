# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Splits of filtered rows, and the data node that holds each row of a selection (docs/order.md, Splits)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, Self

import numpy as np

from kubeflow_datacache.arguments import check_bool, check_int
from kubeflow_datacache.order.epoch import Epoch, RowIndices
from kubeflow_datacache.order.feistel import LIMIT

Bounds = tuple[tuple[int, int], ...]


@dataclass(frozen=True, kw_only=True)
class Split:
    """A share of the rows: parts start <= part < stop of `of` equal ones, drawn at random by the seed.

    Split(of=100, start=0, stop=90) and Split(of=100, start=90, stop=100) have no row in common and together all rows;
    their sizes are exact to one row. shuffle=False divides the rows in the order of the table. Every job that gives the
    same seed and `of` gets the same parts, from whichever cache of the same table.
    """

    of: int
    start: int
    stop: int
    seed: int = 0
    shuffle: bool = True

    def __post_init__(self) -> None:
        for name, low, limit in (("of", 1, LIMIT), ("start", 0, None), ("stop", 0, None), ("seed", 0, 1 << 64)):
            object.__setattr__(self, name, check_int(name, getattr(self, name), low, limit))  # accepts numpy scalars
        object.__setattr__(self, "shuffle", check_bool("shuffle", self.shuffle))
        if not self.start <= self.stop <= self.of:
            raise ValueError(f"start = {self.start}, stop = {self.stop}: want 0 <= start <= stop <= of = {self.of}")

    def bounds(self, rows: int) -> tuple[int, int]:
        """The positions [first, last), among `rows` rows, of the split's rows."""
        return self.start * rows // self.of, self.stop * rows // self.of

    def request(self) -> dict[str, Any]:
        """The field `split` of a request, as in the wire contract."""
        return {"seed": self.seed, "of": self.of, "from": self.start, "to": self.stop, "shuffle": self.shuffle}

    @classmethod
    def parse(cls, field: Mapping[str, Any]) -> Self:
        """The Split of a field `split` of the wire contract."""
        return cls(of=field["of"], start=field["from"], stop=field["to"], seed=field["seed"], shuffle=field["shuffle"])


class Placement(Protocol):
    """Which data node holds each row of a selection.

    Each row has a number; node i holds the rows whose numbers are in [start, end) = bounds[i], and knows the row with
    number n as filtered row first + n.
    """

    @property
    def bounds(self) -> Bounds:
        """For each data node, the range [start, end) of the numbers of its rows."""
        ...

    @property
    def first(self) -> int:
        """The filtered row that has the number 0."""
        ...

    @property
    def scattered(self) -> bool:
        """Whether successive rows are on random nodes."""
        ...

    def numbers(self, rows: RowIndices) -> RowIndices:
        """The number of each row."""
        ...


@dataclass(frozen=True)
class TablePlacement:
    """Rows in the order of the table: each row is its own number."""

    bounds: Bounds
    first: int = 0
    scattered: bool = False

    def numbers(self, rows: RowIndices) -> RowIndices:
        """The rows themselves."""
        return rows


@dataclass(frozen=True)
class SplitPlacement:
    """The rows of a shuffled split: a row's number is its filtered row. filtered: the number of filtered rows."""

    bounds: Bounds
    split: Split
    filtered: int
    first: int = 0
    scattered: bool = True

    def numbers(self, rows: RowIndices) -> RowIndices:
        """The filtered row of each row of the split."""
        positions = rows.astype(np.uint64) + np.uint64(self.split.bounds(self.filtered)[0])
        return self._order.rows_at(positions).view(np.int64)

    @cached_property
    def _order(self) -> Epoch:
        return Epoch(rows=self.filtered, seed=self.split.seed, global_batch=1)


def placement(bounds: Bounds, split: Split | None, filtered: int) -> Placement:
    """Returns the placement of a split's rows, or of all filtered rows. bounds: each node's range of filtered rows."""
    if split is None:
        return TablePlacement(bounds)
    if split.shuffle:
        return SplitPlacement(bounds, split, filtered)
    first, last = split.bounds(filtered)
    held = tuple((min(max(s, first), last) - first, min(max(e, first), last) - first) for s, e in bounds)
    return TablePlacement(held, first)


class JoinedPlacement:
    """The placement of a mixture, whose rows are those of all parts one after the other. starts: each part's first row.

    The numbers of a part follow those of the part before it. firsts: where they begin, by part.
    """

    scattered = True
    first = 0

    def __init__(self, parts: Sequence[Placement], starts: Sequence[int]) -> None:
        self._parts, self._starts = parts, np.array(starts, np.int64)
        ends = [part.bounds[-1][1] if part.bounds else 0 for part in parts]
        self.firsts = np.cumsum([0, *ends[:-1]], dtype=np.int64)
        self.bounds: Bounds = tuple(
            (int(offset) + start, int(offset) + end)
            for part, offset in zip(parts, self.firsts, strict=True)
            for start, end in part.bounds
        )

    def numbers(self, rows: RowIndices) -> RowIndices:
        """The number of each row."""
        if (self.firsts == self._starts).all() and not any(part.scattered for part in self._parts):
            return rows
        part = np.searchsorted(self._starts, rows, side="right") - 1
        out = np.empty_like(rows)
        for i, own in enumerate(self._parts):
            chosen = np.flatnonzero(part == i)
            out[chosen] = own.numbers(rows[chosen] - self._starts[i]) + self.firsts[i]
        return out
