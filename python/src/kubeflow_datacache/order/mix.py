# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The order of a mixture, version 1: the part and row at each position (docs/order.md, Mixtures). Pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, get_args

import numpy as np
import numpy.typing as npt

from kubeflow_datacache.order.epoch import Epoch, RowIndices, within
from kubeflow_datacache.order.feistel import GOLD, LIMIT, UInt64Array, apply_each, mix

Unit = Literal["row", "batch"]
MOST_PARTS: Final = 256
MOST_PHASES: Final = 64
_FEW_PARTS: Final = 8  # up to this number of parts, one comparison per part is faster than a binary search per row


@dataclass(frozen=True, kw_only=True)
class Part:
    """One data set of a mixture: its number of rows, and its weight in each phase."""

    rows: int
    weights: tuple[int, ...]

    def __post_init__(self) -> None:
        within("rows", self.rows, 1, LIMIT)
        for weight in self.weights:
            within("weights", weight, 0, LIMIT)
        if not any(self.weights):
            raise ValueError(f"weights = {list(self.weights)}: leave a part out that has no weight")


@dataclass(frozen=True, kw_only=True)
class Mix(Epoch):
    """One epoch of a mixture. `rows` is its number of positions; seed, shuffle, clump and window apply to each
    part's rows.

    Rows are numbered through all parts: row x of a part is row x + (the rows of the parts before it), and rows_of
    returns these numbers. phases: the number of draws of each phase but the last, which does not end. unit: whether
    each row is drawn by itself, or all rows of a step come from one part.
    """

    parts: tuple[Part, ...]
    phases: tuple[int, ...] = ()
    unit: Unit = "row"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.order != 1:
            raise ValueError(f"order = {self.order}: mixtures have order version 1 alone")
        if self.unit not in get_args(Unit):
            raise ValueError(f'unit = {self.unit!r}: want "row" or "batch"')
        if not 1 <= len(self.parts) <= MOST_PARTS:
            raise ValueError(f"parts: {len(self.parts)}, want 1 to {MOST_PARTS}")
        if len(self.phases) >= MOST_PHASES:
            raise ValueError(f"phases: {len(self.phases)}, want at most {MOST_PHASES - 1}")
        if self.rows % self.draw_rows:
            raise ValueError(f"rows = {self.rows}: want a multiple of global_batch = {self.global_batch}")
        if (self.number + 1) * self.rows > LIMIT:
            raise ValueError(f"epoch = {self.number}: want (epoch + 1) * {self.rows} rows <= 2^62")
        within("the sum of all parts' rows", sum(part.rows for part in self.parts), 1, LIMIT)
        for part in self.parts:
            if len(part.weights) != len(self.phases) + 1:
                raise ValueError(f"weights: {len(part.weights)}, want {len(self.phases) + 1}, one for each phase")
        for phase, total in enumerate(self._totals):
            within(f"weights of phase {phase}: their sum times the rows of a draw", total * self.draw_rows, 1, LIMIT)
        for phase, (draws, total) in enumerate(zip(self.phases, self._totals, strict=False)):
            if draws < 1 or draws % (total * self.draw_rows):
                raise ValueError(f"phases[{phase}] = {draws}: want a multiple of {total * self.draw_rows}")
        within("the sum of all phases", sum(self.phases), 0, LIMIT)

    @property
    def scattered(self) -> bool:
        """True: consecutive positions hold rows of any part."""
        return True

    @property
    def draw_rows(self) -> int:
        """The number of rows of one draw."""
        return self.global_batch if self.unit == "batch" else 1

    def locate(self, rows: RowIndices) -> tuple[npt.NDArray[np.int16], RowIndices]:
        """The part of each row that rows_of returned, and its index there."""
        part = np.searchsorted(self.starts, rows, side="right") - 1
        return part.astype(np.int16), rows - self.starts[part]

    def part_of(self, steps: range) -> npt.NDArray[np.int16]:
        """The part of the rows of each step, with the unit "batch"."""
        first = np.arange(steps.start, steps.stop, steps.step, dtype=np.uint64) * np.uint64(self.global_batch)
        return self.locate(self.rows_at(first).view(np.int64))[0]

    def same_part(self, steps: range) -> range:
        """The steps up to the first of another part, with the unit "batch"; otherwise all."""
        if self.unit == "row":
            return steps
        part = self.part_of(steps)
        others = np.flatnonzero(part != part[0])
        return steps[: int(others[0])] if others.size else steps

    @cached_property
    def starts(self) -> RowIndices:
        """The number of the first row of each part."""
        return np.cumsum([0, *(part.rows for part in self.parts[:-1])], dtype=np.int64)

    @cached_property
    def _totals(self) -> list[int]:
        """The sum of the weights of each phase."""
        return [sum(part.weights[phase] for part in self.parts) for phase in range(len(self.phases) + 1)]

    @cached_property
    def _phases(self) -> list[_Phase]:
        drawn, made = [0] * len(self.parts), list[_Phase]()
        for phase, total in enumerate(self._totals):
            weights = [part.weights[phase] for part in self.parts]
            made.append(_Phase(sum(self.phases[:phase]), total, mix(self.seed + 1 + phase), weights, drawn))
            if phase < len(self.phases):
                count = self.phases[phase] // total
                drawn = [before + count * weight for before, weight in zip(drawn, weights, strict=True)]
        return made

    def rows_at(self, positions: UInt64Array) -> UInt64Array:
        """The rows, numbered through all parts, at the positions."""
        draws = positions + np.uint64(self.number * self.rows)
        if len(self.phases) == 0 or not len(draws):
            return self._draw(self._phases[0], draws)
        phase = np.searchsorted(np.array([p.first for p in self._phases[1:]], np.uint64), draws, side="right")
        if phase[0] == phase.min() == phase.max():
            return self._draw(self._phases[int(phase[0])], draws)
        for index in np.unique(phase).tolist():
            chosen = phase == index
            draws[chosen] = self._draw(self._phases[index], draws[chosen])
        return draws

    def _draw(self, phase: _Phase, draws: UInt64Array) -> UInt64Array:
        """The rows, numbered through all parts, of draws of one phase."""
        number, offset = draws - np.uint64(phase.first), None
        if self.draw_rows > 1:
            number, offset = _divide(number, self.draw_rows)
        block, slot = _divide(number, phase.total)
        slot = apply_each(phase.total, phase.seed, block, slot)
        part = phase.parts_of(slot)
        out = np.empty_like(slot)
        for index in np.flatnonzero(np.bincount(part)).tolist():
            chosen = np.flatnonzero(part == index)
            drawn = block[chosen]
            drawn *= np.uint64(phase.weights[index])
            drawn += slot[chosen]
            drawn -= np.uint64(phase.befores[index])
            if offset is not None:
                drawn *= np.uint64(self.draw_rows)
                drawn += offset[chosen]
            drawn += np.uint64(phase.drawn[index])
            out[chosen] = self._rows_of_part(index, drawn) + np.uint64(self.starts[index])
        return out

    def _rows_of_part(self, index: int, drawn: UInt64Array) -> UInt64Array:
        rows = self.parts[index].rows
        epochs, positions = _divide(drawn, rows)
        seed = mix(self.seed + GOLD * (index + 2))
        if self.shuffle and self.clump == 1 and not self.window:
            return apply_each(rows, seed, epochs, positions)
        own = Epoch(rows=rows, seed=seed, shuffle=self.shuffle, clump=self.clump, window=self.window, global_batch=1)
        for number in np.unique(epochs).tolist():
            chosen = epochs == number
            positions[chosen] = own.numbered(number).rows_at(positions[chosen])
        return positions


def _divide(numbers: UInt64Array, by: int) -> tuple[UInt64Array, UInt64Array]:
    """Quotients and remainders; numpy's divmod takes several times as long."""
    quotients = numbers // np.uint64(by)
    return quotients, numbers - quotients * np.uint64(by)


class _Phase:
    """A range of draws with constant weights. Lists have one item per part."""

    def __init__(self, first: int, total: int, seed: int, weights: list[int], drawn: list[int]) -> None:
        self.first, self.total, self.seed = first, total, seed
        self.weights, self.drawn = weights, drawn
        self._ends = np.cumsum(np.array(weights, np.uint64), dtype=np.uint64)
        self.befores: list[int] = (self._ends - np.array(weights, np.uint64)).tolist()

    def parts_of(self, slots: UInt64Array) -> npt.NDArray[np.intp] | npt.NDArray[np.uint8]:
        """The part of each slot."""
        if len(self._ends) > _FEW_PARTS:
            return np.searchsorted(self._ends, slots, side="right")
        part = np.zeros(len(slots), np.uint8)
        for end in self._ends[:-1]:
            part += slots >= end
        return part
