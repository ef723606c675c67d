# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The order of an epoch, version 2, in which a rank reads few ranges of the rows (docs/order.md, Lanes)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from kubeflow_datacache.order.feistel import GOLD, Feistel, UInt64Array, mix

LANES: Final = 32  # ranges that the rows are divided into
LEAST_BATCH: Final = 2 * LANES  # the least batch in which each step can have rows of every range
_SMALL: Final = 1 << 52  # number of rows below which 64 bits suffice for products

RowsAt = Callable[[UInt64Array], UInt64Array]


class LanedLayout:
    """Maps positions in the epoch's sequence to row indices. Positions must be below the number of rows.

    make_range(rows, seed): the order of the rows of one range, a function from positions to rows, which may overwrite
    its argument.
    """

    def __init__(self, rows: int, seed: int, number: int, batch: int, make_range: Callable[[int, int], RowsAt]) -> None:
        self._rows, self._batch = rows, batch
        slots = Feistel(LANES, mix(seed + 1), number).apply(np.arange(LANES, dtype=np.uint64)).tolist()
        ends = [lane * rows // LANES for lane in range(LANES + 1)]
        self._first = [ends[lane] for lane in slots]  # the first row of the range in each slot
        sizes = [ends[lane + 1] - ends[lane] for lane in slots]
        self._before = [sum(sizes[:slot]) for slot in range(LANES + 1)]  # rows of the slots before each
        # how many more they are than slots of equal size have, times LANES: at most 256, as sizes differ by one
        self._excess = [LANES * before - slot * rows for slot, before in enumerate(self._before)]
        self._ranges = [
            make_range(size, mix(seed + GOLD * (lane + 2))) if size else None
            for lane, size in zip(slots, sizes, strict=True)
        ]

    def rows_at(self, positions: UInt64Array) -> UInt64Array:
        """The rows at the positions."""
        if not len(positions):
            return positions
        steps = positions // np.uint64(self._batch)
        firsts = np.flatnonzero(np.diff(steps, prepend=steps[:1] + np.uint64(1)))
        which = np.repeat(np.arange(len(firsts)), np.diff(firsts, append=len(steps)))  # run of positions of one step
        begins = [step * self._batch for step in steps[firsts].tolist()]
        before = self._edges(begins)
        starts = self._edges([min(begin + self._batch, self._rows) for begin in begins]) - before
        moved = np.roll(before, -1, axis=1) - before - starts  # from an offset in the step to one in the slot's range
        offset = positions - np.array(begins, np.uint64)[which]
        slot = _slots(starts, which, offset)
        index = offset + moved.reshape(-1).take(which * (LANES + 1) + slot)
        rows, order = np.empty_like(index), np.argsort(slot.astype(np.uint8), kind="stable")
        ends = np.cumsum(np.bincount(slot, minlength=LANES)).tolist()
        for number, (rows_at, end) in enumerate(zip(self._ranges, ends, strict=True)):
            chosen = order[ends[number - 1] if number else 0 : end]
            if rows_at is not None and len(chosen):
                rows[chosen] = rows_at(index[chosen]) + np.uint64(self._first[number])
        return rows

    def _edges(self, positions: list[int]) -> UInt64Array:
        """For each number of positions from the start of the epoch, the rows taken from the slots before each slot."""
        if self._rows < _SMALL:
            taken = np.array(positions, np.int64)[:, None]
            equal, excess = taken * np.arange(LANES + 1), taken * np.array(self._excess, np.int64)
            return ((equal + excess // self._rows) // LANES).view(np.uint64)
        exact = [[first * before // self._rows for before in self._before] for first in positions]
        return np.array(exact, np.uint64).reshape(len(positions), LANES + 1)


def _slots(starts: UInt64Array, which: npt.NDArray[np.intp], offset: UInt64Array) -> npt.NDArray[np.intp]:
    """The slot of each position, at `offset` in a step: a guess, as slots are about equal, corrected.

    which: its index in starts, which has for each step where its slots begin, and its size.
    """
    slot = np.minimum(offset * (LANES / starts[:, -1])[which], LANES - 1).astype(np.intp)
    row, flat = which * (LANES + 1), starts.reshape(-1)
    while True:
        at = row + slot
        before, after = offset < flat.take(at), offset >= flat.take(at + 1)
        if not before.any() and not after.any():
            return slot
        slot += after.astype(np.intp) - before
