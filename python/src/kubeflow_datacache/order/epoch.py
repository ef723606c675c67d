# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The order of an epoch: the row at each position, and the reader that gets it. Pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple, Self, cast, get_args

import numpy as np
import numpy.typing as npt

from kubeflow_datacache.order.feistel import LIMIT, Feistel, UInt64Array
from kubeflow_datacache.order.laned import LEAST_BATCH, LanedLayout, RowsAt
from kubeflow_datacache.order.window import Windows

Order = Literal[1, 2]  # version of the order
Tail = Literal["drop", "pad", "keep"]
RowIndices = npt.NDArray[np.int64]


class Span(NamedTuple):
    """Positions [first, last) of an epoch's sequence; with tail "pad", some may be beyond its end."""

    first: int
    last: int


@dataclass(frozen=True, kw_only=True)
class Share:
    """One reader's share: rank `rank` of `world`, whose worker `worker` of `workers` reads every workers-th step."""

    rank: int = 0
    world: int = 1
    worker: int = 0
    workers: int = 1

    def __post_init__(self) -> None:
        for name, value, of in (("rank", self.rank, "world"), ("worker", self.worker, "workers")):
            total = cast("int", getattr(self, of))
            if not 1 <= total < LIMIT:
                raise ValueError(f"{of} = {total}: want 1 <= {of} < 2^62")
            if not 0 <= value < total:
                raise ValueError(f"{name} = {value} is outside {of} = {total}: want 0 <= {name} < {of}")

    def first_step(self, start: int) -> int:
        """The first step of this worker at or after `start`."""
        return start + (self.worker - start) % self.workers


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """One pass over `rows` rows in steps of `global_batch` rows. Field names are those of the wire contract.

    window: number of consecutive clumps of the sequence whose rows are shuffled; 0: none are. order: the version of the
    order; in 2, a rank reads few ranges of the rows. Immutable and safe for concurrent use. rows, clump, window and
    global_batch are below 2^62, seed and number below 2^64.
    """

    rows: int
    seed: int = 0
    number: int = 0
    shuffle: bool = True
    clump: int = 1
    global_batch: int
    tail: Tail = "drop"
    order: Order = 1
    window: int = 0

    def __post_init__(self) -> None:
        within("rows", self.rows, 0, LIMIT)
        within("seed", self.seed, 0, 1 << 64)
        within("epoch", self.number, 0, 1 << 64)
        within("clump", self.clump, 1, LIMIT)
        within("window", self.window, 0, LIMIT)
        within("global_batch", self.global_batch, 1, LIMIT)
        if self.tail not in get_args(Tail):
            raise ValueError(f'tail = {self.tail!r}: want "drop", "pad" or "keep"')
        if self.order not in get_args(Order):
            raise ValueError(f"order = {self.order!r}: want 1 or 2")
        if self.order == 2 and not self.shuffle:
            raise ValueError("order = 2: want shuffle = True; without it, the order has version 1 alone")
        if self.order == 2 and self.global_batch < LEAST_BATCH:
            raise ValueError(f"global_batch = {self.global_batch}: want at least {LEAST_BATCH} with order = 2")

    @property
    def scattered(self) -> bool:
        """Whether consecutive positions may hold rows of different data nodes."""
        return self.shuffle

    def numbered(self, number: int) -> Self:
        """Returns a copy with another epoch number."""
        return replace(self, number=number)

    @cached_property
    def steps(self) -> int:
        """The number of steps in the epoch; the same for every rank and world."""
        return self.rows // self.global_batch if self.tail == "drop" else -(-self.rows // self.global_batch)

    def size(self, step: int) -> int:
        """The number of positions in a step over all ranks: global_batch; with tail "keep" fewer in the last step."""
        if self.tail != "keep":
            return self.global_batch
        return min(self.global_batch, self.rows - step * self.global_batch)

    def span(self, step: int, share: Share) -> Span:
        """The share's positions in a step. Shares differ by at most one position and may be empty."""
        first, size = step * self.global_batch, self.size(step)
        return Span(first + share.rank * size // share.world, first + (share.rank + 1) * size // share.world)

    def valid(self, span: Span) -> npt.NDArray[np.bool_]:
        """Boolean mask of the span's positions that are not padding."""
        return np.arange(span.first, span.last) < self.rows

    def rows_of(self, steps: range, share: Share) -> RowIndices:
        """The share's rows in the steps, concatenated: one int64 per position.

        steps must be within [0, self.steps). With tail "pad", a position p beyond the end holds row p mod rows.
        """
        if not steps:
            return np.empty(0, np.int64)
        short = len(steps) if self.size(steps[-1]) == self.size(steps[0]) else len(steps) - 1
        parts = [self._positions(part, share) for part in (steps[:short], steps[short:]) if part]
        positions = parts[0] if len(parts) == 1 else np.concatenate(parts)
        if positions.size and int(positions[-1]) >= self.rows:
            positions %= np.uint64(self.rows)
        return self.rows_at(positions).view(np.int64)

    def same_part(self, steps: range) -> range:
        """The steps up to the first whose rows are of another part of a mixture than the first's. Not empty."""
        return steps

    def rows_at(self, positions: UInt64Array) -> UInt64Array:
        """The rows at positions below the number of rows; may overwrite the input array."""
        return self._layout.rows_at(positions)

    def locate(self, rows: RowIndices) -> tuple[npt.NDArray[np.int16], RowIndices]:
        """The part of a mixture that each row of rows_of belongs to, and its index there: part 0 has all rows."""
        return np.zeros(len(rows), np.int16), rows

    def _positions(self, steps: range, share: Share) -> UInt64Array:
        """The share's positions in steps of equal size."""
        begin = self.span(steps[0], share)
        stride = np.uint64((steps[1] - steps[0]) * self.global_batch if len(steps) > 1 else 0)
        first = np.arange(len(steps), dtype=np.uint64) * stride + np.uint64(begin.first)
        return (first[:, None] + np.arange(begin.last - begin.first, dtype=np.uint64)).reshape(-1)

    @cached_property
    def _layout(self) -> _Layout | LanedLayout:
        if self.order == 1 or not self.rows:
            return _Layout(self)

        def make_range(rows: int, seed: int) -> RowsAt:
            return _Layout(replace(self, rows=rows, seed=seed, order=1)).rows_at

        return LanedLayout(self.rows, self.seed, self.number, self.global_batch, make_range)


class _Layout:
    """Maps positions in the epoch's sequence to row indices. Positions must be below the number of rows."""

    def __init__(self, epoch: Epoch) -> None:
        self._clump = np.uint64(epoch.clump)
        self._feistel: Feistel | None = None
        if not epoch.shuffle or epoch.rows == 0:
            return
        clumps = -(-epoch.rows // epoch.clump)
        self._feistel = Feistel(clumps, epoch.seed, epoch.number)
        missing = clumps * epoch.clump - epoch.rows
        regular = epoch.rows
        # the table's last clump is incomplete: after its end in the epoch, positions shift by the missing rows
        if missing:
            regular = self._feistel.inverse(clumps - 1) * epoch.clump + epoch.clump - missing
        self._regular, self._missing = np.uint64(regular), np.uint64(missing)
        self._windows: Windows | None = None
        if epoch.window:
            length = min(epoch.window, clumps) * epoch.clump
            self._windows = Windows(epoch.rows, epoch.seed, epoch.number, length, regular, missing)

    def rows_at(self, positions: UInt64Array) -> UInt64Array:
        """The rows at the positions; may overwrite the input array."""
        if self._feistel is None:
            return positions
        if self._windows is not None:
            positions = self._windows.apply(positions)
        if self._clump == 1:
            return self._feistel.apply(positions)
        if self._missing:
            positions[positions >= self._regular] += self._missing
        index, offset = np.divmod(positions, self._clump)
        return self._clumps(index) * self._clump + offset

    def _clumps(self, index: UInt64Array) -> UInt64Array:
        """Applies the permutation to clump indices, once per run of equal neighbours."""
        assert self._feistel is not None
        begins = np.flatnonzero(np.diff(index, prepend=index[:1] + np.uint64(1)))
        runs = self._feistel.apply(index[begins])
        return np.repeat(runs, np.diff(begins, append=len(index)))


def within(name: str, value: int, low: int, limit: int) -> None:
    """Raises ValueError, naming the field, unless low <= value < limit; limit is a power of two."""
    if not low <= value < limit:
        raise ValueError(f"{name} = {value}: want {low} <= {name} < 2^{limit.bit_length() - 1}")
