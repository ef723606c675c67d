# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The plan of a rank's steps whose rows depend on lengths: which rows of which data node each step has."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, NamedTuple, Self, TypeVar

import numpy as np

from kubeflow_datacache.order.epoch import Epoch, RowIndices, Share
from kubeflow_datacache.order.pack import Counts, Int64Array, PackedStep
from kubeflow_datacache.order.plan import InterleavedRun, Plan
from kubeflow_datacache.order.split import Placement


class Spans(NamedTuple):
    """Pieces of rows: the first token of each in its row, and its number of tokens."""

    starts: Int64Array
    lengths: Int64Array


@dataclass(frozen=True)
class RankStep:
    """A rank's packs of a step, one for each micro-batch; None where there are fewer packs than ranks.

    rows, spans: the row and the tokens of each piece, pack by pack. bounds: where the pieces of each pack begin, and
    their number; a pack of none is None. following: where the epoch goes on after the step, as position of a
    window and number in it. tokens, sequences: of the packs of all ranks. counts: of the window's rows, in its first
    step; otherwise of none.
    """

    rows: Int64Array
    spans: Spans
    bounds: list[int]
    following: tuple[int, int]
    tokens: int
    sequences: int
    counts: Counts

    @classmethod
    def of(cls, step: PackedStep, epoch: Epoch, share: Share) -> Self:
        """A rank's part of a step."""
        own, none = step.share(share.rank, share.world), np.empty(0, np.int64)
        pieces = [(pack.positions, pack.starts, pack.lengths) for pack in own if pack is not None]
        positions, starts, lengths = map(np.concatenate, zip((none, none, none), *pieces, strict=True))
        rows = epoch.rows_at(positions.astype(np.uint64)).view(np.int64)
        bounds = [0, *itertools.accumulate(0 if pack is None else len(pack.starts) for pack in own)]
        return cls(rows, Spans(starts, lengths), bounds, step.following, step.tokens, step.sequences, step.counts)

    @property
    def packs(self) -> list[Spans | None]:
        """The pieces of each pack."""
        starts, lengths = self.spans
        pairs = itertools.pairwise(self.bounds)
        return [Spans(starts[lo:hi], lengths[lo:hi]) if lo < hi else None for lo, hi in pairs]


@dataclass(frozen=True)
class BalancedStep:
    """A rank's rows of a step."""

    rows: Int64Array


AnyStep = TypeVar("AnyStep", RankStep, BalancedStep)


class RankSteps(Generic[AnyStep]):
    """A rank's steps by their number in the epoch, counted from `first`. One thread calls at and put, another one pop.

    plan: yields the steps from a number on; it is given the number, and the step before it if that is known. It is
    called once, when a step is wanted that was not put.
    """

    def __init__(self, plan: Callable[[int, AnyStep | None], Iterator[AnyStep]], first: int) -> None:
        self._known = dict[int, AnyStep]()
        self._plan, self._next = plan, first
        self._steps: Iterator[AnyStep] | None = None
        self._last: AnyStep | None = None

    def at(self, number: int) -> AnyStep | None:
        """A step; None after the last one. Keeps it until it is popped."""
        if self._steps is None:
            self._steps = self._plan(self._next, self._last)
        while number >= self._next:
            if (following := next(self._steps, None)) is None:
                return None
            self.put(following)
        return self._known[number]

    def put(self, step: AnyStep) -> None:
        """Adds the next step, which another process has planned."""
        self._known[self._next] = self._last = step
        self._next += 1

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
        return None if own is None else self._assign(range(step, step + 1), len(own.rows))

    def _numbers(self, steps: range, size: int) -> RowIndices:
        own = self._steps.at(steps[0])
        assert own is not None
        return self._placement.numbers(own.rows)
