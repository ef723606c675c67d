# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The plan of a rank's steps whose rows depend on lengths: which rows of which data node each step has."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from kubeflow_datacache.order.epoch import Epoch, RowIndices, Share
from kubeflow_datacache.order.pack import Int64Array, PackedStep, Pieces
from kubeflow_datacache.order.plan import InterleavedRun, Plan
from kubeflow_datacache.order.split import Placement


@dataclass(frozen=True)
class RankStep:
    """A rank's packs of a step, one for each micro-batch; None where there are fewer packs than ranks."""

    step: PackedStep
    packs: list[Pieces | None]

    @property
    def pieces(self) -> Pieces:
        """The pieces of all packs, one after the other."""
        own = [pack for pack in self.packs if pack is not None]
        none = np.empty(0, np.int64)
        return Pieces(*map(np.concatenate, zip(*own, strict=True))) if own else Pieces(none, none, none)

    @property
    def positions(self) -> Int64Array:
        """The position in the epoch of each piece."""
        return self.pieces.positions


@dataclass(frozen=True)
class BalancedStep:
    """The positions in the epoch of a rank's rows of a step."""

    positions: Int64Array


AnyStep = TypeVar("AnyStep", RankStep, BalancedStep)


class RankSteps(Generic[AnyStep]):
    """A rank's steps by their number in the epoch, counted from `first`. One thread calls at, another one pop."""

    def __init__(self, steps: Iterator[AnyStep], first: int) -> None:
        self._known = dict[int, AnyStep]()
        self._steps = zip(itertools.count(first), steps)
        self._next = first

    def at(self, number: int) -> AnyStep | None:
        """A step; None after the last one. Keeps it until it is popped."""
        while number >= self._next:
            if (following := next(self._steps, None)) is None:
                return None
            self._known[following[0]] = following[1]
            self._next += 1
        return self._known[number]

    def pop(self, number: int) -> AnyStep:
        """A step that is not needed any more."""
        return self._known.pop(number)


class StepsPlan(Plan, Generic[AnyStep]):
    """Divides a rank's steps into runs of one step each."""

    def __init__(self, epoch: Epoch, share: Share, placement: Placement, steps: RankSteps[AnyStep]) -> None:
        super().__init__(epoch, share, placement, numbered=True)
        self._steps = steps

    def next(self, step: int, most_rows: int) -> InterleavedRun | None:
        """The rows of a step; None at the end of the epoch."""
        own = self._steps.at(step)
        return None if own is None else self._assign(range(step, step + 1), len(own.positions))

    def _numbers(self, steps: range, size: int) -> RowIndices:
        own = self._steps.at(steps[0])
        assert own is not None
        rows = self._epoch.rows_at(own.positions.astype(np.uint64)).view(np.int64)
        return self._placement.numbers(rows)
