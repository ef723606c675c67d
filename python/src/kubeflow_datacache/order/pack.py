# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The law of packing, version 1: which rows of an epoch share a pack, a step and a rank. Pure arithmetic."""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from kubeflow_datacache.arguments import check_int
from kubeflow_datacache.order.feistel import Feistel, mix

Long = Literal["refuse", "split", "truncate", "drop"]
Int64Array = npt.NDArray[np.int64]
VERSION: Final = 1
_PACK_SEED: Final = 0xA0761D6478BD642F
_WINDOW_PACKS: Final = 128  # windows of fewer packs leave more room empty
_MOST_TOKENS: Final = 1 << 24
_MOST_PACKS: Final = 1 << 20


@dataclass(frozen=True)
class Pack:
    """How rows with lists of tokens become packs: `packs` packs of at most `tokens` tokens a step, over all ranks.

    column: the lists of tokens. tokens: the most tokens of a pack. packs: the packs of a step, whatever the number of
    ranks; a multiple of it gives every rank as many. multiple: each row takes a multiple of so many tokens of its pack,
    as context and tensor parallelism want; lcm(2 * cp, cp * tp). quadratic: attention costs as much as all else for a
    row of so many tokens: the parameters of the model divided by (layers * hidden size); packs have about equal cost.
    window: rows of so many steps are packed together; None: as many as have 128 packs. long: what happens to a row of
    more than `tokens` tokens. "refuse" raises ColumnError when the first iteration begins; "split" makes pieces of it,
    "truncate" keeps its first tokens, "drop" leaves it out. labels: a column of as many labels as tokens, in place of
    the tokens.
    """

    column: str
    tokens: int
    packs: int
    multiple: int = 1
    quadratic: int = 61_035
    window: int | None = None
    long: Long = "refuse"
    labels: str | None = None

    def __post_init__(self) -> None:
        names: list[tuple[str, Any]] = [("column", self.column), ("labels", self.labels)]
        for name, value in names:
            if (name == "column" or value is not None) and (not isinstance(value, str) or not value):
                raise TypeError(f"Pack: {name} = {value!r}: want the name of a column")
        limits = {"tokens": _MOST_TOKENS + 1, "packs": _MOST_PACKS + 1, "multiple": None, "quadratic": _MOST_TOKENS + 1}
        for name, limit in limits.items():
            low = 0 if name == "quadratic" else 1
            object.__setattr__(self, name, check_int(f"Pack: {name}", getattr(self, name), low, limit))
        if self.tokens % self.multiple:
            raise ValueError(f"Pack: tokens = {self.tokens}: want a multiple of multiple = {self.multiple}")
        window = -(-_WINDOW_PACKS // self.packs) if self.window is None else self.window
        object.__setattr__(self, "window", check_int("Pack: window", window, 1, _MOST_PACKS // self.packs + 1))
        if self.long not in get_args(Long):
            raise ValueError(f'Pack: long = {self.long!r}: want "refuse", "split", "truncate" or "drop"')

    @property
    def window_packs(self) -> int:
        """The packs of a window."""
        return (self.window or 1) * self.packs

    @property
    def longest(self) -> int | None:
        """How many tokens a row may have; None if any number of them is truncated or dropped."""
        return {"refuse": self.tokens, "split": self.window_packs * self.tokens}.get(self.long)

    def sizes(self, lengths: Int64Array) -> Int64Array:
        """The tokens that rows of these lengths take in packs."""
        if self.long == "drop":
            lengths = np.where(lengths > self.tokens, 0, lengths)
        if self.long == "truncate":
            lengths = np.minimum(lengths, self.tokens)
        return -(-lengths // self.multiple) * self.multiple


class Pieces(NamedTuple):
    """Rows, or pieces of rows, in the order of the epoch: each has `lengths` tokens of the row at a position, from
    token `starts` on."""

    positions: Int64Array
    starts: Int64Array
    lengths: Int64Array

    def at(self, chosen: list[int]) -> Pieces:
        """Some of the pieces."""
        return Pieces(*(array[chosen] for array in self))


@dataclass(frozen=True)
class Counts:
    """What became of rows: `rows` in packs or not, among them rows without tokens, and rows that were too long."""

    rows: int = 0
    empty: int = 0
    dropped: int = 0
    truncated: int = 0
    split: int = 0

    def plus(self, other: Counts) -> Counts:
        """The sum of both."""
        return Counts(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class PackedStep:
    """A step of a window that begins at `position`: the pieces of its packs, and the cost of each pack.

    index: the number of the step in its window. following: where the epoch goes on after the step, as position and
    index. counts: of the window's rows, in its first step; otherwise of none.
    """

    position: int
    index: int
    following: tuple[int, int]
    packs: list[Pieces]
    costs: list[int]
    counts: Counts

    @property
    def tokens(self) -> int:
        """The tokens of the step over all ranks."""
        return sum(int(pack.lengths.sum()) for pack in self.packs)

    @property
    def sequences(self) -> int:
        """The number of pieces of the step over all ranks."""
        return sum(len(pack.lengths) for pack in self.packs)

    def share(self, rank: int, world: int) -> list[Pieces | None]:
        """A rank's packs, one for each micro-batch; None where there are fewer packs than ranks."""
        own = [row[rank] for row in deal(self.costs, world)]
        return [None if number is None else self.packs[number] for number in own]


def deal(costs: list[int], world: int) -> list[list[int | None]]:
    """Which pack each rank gets in each micro-batch: the dearest of a micro-batch goes to the rank with least so
    far."""
    dearest = sorted(range(len(costs)), key=lambda pack: -costs[pack])
    sums, rounds = [0] * world, list[list[int | None]]()
    for first in range(0, len(dearest), world):
        row: list[int | None] = [None] * world
        for pack, rank in zip(dearest[first : first + world], sorted(range(world), key=sums.__getitem__), strict=False):
            row[rank] = pack
        for rank, pack in enumerate(row):
            sums[rank] += 0 if pack is None else costs[pack]
        rounds.append(row)
    return rounds


def fit(sizes: Int64Array, tokens: int, packs: int, quadratic: int) -> list[int] | None:
    """The pack of each piece, or None if they do not fit.

    The longest first, into the cheapest pack if it has room; otherwise into the pack with the least room that fits, and
    of these into the one that has had it for the shortest time.
    """
    of, room, costs = [0] * len(sizes), [tokens] * packs, [0] * packs
    cheapest = [(0, pack) for pack in range(packs)]
    with_room = {tokens: list(range(packs - 1, -1, -1))}  # in the order in which they got it
    rooms = [tokens]  # the keys, ascending
    values = sizes.tolist()
    for piece in np.argsort(-sizes, kind="stable").tolist():
        size = values[piece]
        while cheapest[0][0] != costs[cheapest[0][1]]:
            heapq.heappop(cheapest)
        pack = cheapest[0][1]
        if room[pack] < size:
            at = bisect.bisect_left(rooms, size)
            if at == len(rooms):
                return None
            pack = with_room[rooms[at]][-1]
        left = room[pack]
        same = with_room[left]
        same.remove(pack)
        if not same:
            del with_room[left], rooms[bisect.bisect_left(rooms, left)]
        left -= size
        if left not in with_room:
            with_room[left] = []
            bisect.insort(rooms, left)
        with_room[left].append(pack)
        of[piece], room[pack] = pack, left
        costs[pack] += size * (quadratic + size)
        heapq.heappush(cheapest, (costs[pack], pack))
    return of


class Packer:
    """Packs the rows of an epoch, window by window.

    rows: the number of rows. lengths: yields the lengths of the rows from `position` on, in the order of the epoch.
    refused: is called with the position and the length of a row that is too long, and raises an error.
    """

    def __init__(self, pack: Pack, *, rows: int, seed: int, epoch: int, refused: Callable[[int, int], object]) -> None:
        self._pack, self._rows, self._seed, self._epoch = pack, rows, seed, epoch
        self._refused = refused

    def steps(self, position: int, lengths: Iterator[Int64Array]) -> Iterator[PackedStep]:
        """The steps from the window on that begins at a position."""
        pack, known = self._pack, np.empty(0, np.int64)
        while position < self._rows:
            most, parts, total = pack.window_packs * pack.tokens, [known], int(pack.sizes(known).sum())
            count = len(known)
            while total <= most and position + count < self._rows:
                part = next(lengths).astype(np.int64)
                parts.append(part)
                total, count = total + int(pack.sizes(part).sum()), count + len(part)
            known = np.concatenate(parts)
            rows, steps = self._window(position, known)
            yield from steps
            position, known = position + rows, known[rows:]

    def _window(self, position: int, lengths: Int64Array) -> tuple[int, list[PackedStep]]:
        """The number of rows of the window that begins at a position, and its steps."""
        pack, sizes = self._pack, self._pack.sizes(lengths)
        packed = np.flatnonzero(sizes)
        ends = np.cumsum(sizes[packed])
        most = int(np.searchsorted(ends, pack.window_packs * pack.tokens, side="right"))
        self._check(position, lengths[: int(packed[most]) + 1 if most < len(packed) else len(lengths)], most)
        found = None
        if most == len(packed):  # the end of the epoch: the fewest packs that hold it
            pieces, sized = self._pieces(position, lengths, packed)
            for packs in range(max(1, -(-int(sizes.sum()) // pack.tokens)), pack.window_packs + 1):
                if (found := fit(sized, pack.tokens, packs, pack.quadratic)) is not None:
                    return len(lengths), self._steps(position, len(lengths), pieces, sized, found, lengths)
        least, less = (1 if pack.long == "split" else min(pack.window_packs, most)), 0
        while True:
            count = max(most - less, least)
            pieces, sized = self._pieces(position, lengths, packed[:count])
            found = fit(sized, pack.tokens, pack.window_packs, pack.quadratic)
            if found is not None:
                rows = int(packed[count]) if count < len(packed) else len(lengths)
                return rows, self._steps(position, rows, pieces, sized, found, lengths[:rows])
            less = 2 * less or max(1, most // 1024)

    def _check(self, position: int, lengths: Int64Array, most: int) -> None:
        """Refuses rows that are too long."""
        pack = self._pack
        if pack.longest is not None and (pack.long == "refuse" or not most):
            for index in np.flatnonzero(lengths > pack.longest).tolist():
                self._refused(position + index, int(lengths[index]))

    def _pieces(self, position: int, lengths: Int64Array, packed: Int64Array) -> tuple[Pieces, Int64Array]:
        """The pieces of some rows, and the tokens that they take."""
        pack, own = self._pack, lengths[packed]
        if pack.long == "split":
            count = -(-own // pack.tokens)
            first = np.repeat(np.cumsum(count) - count, count)
            starts = (np.arange(len(first)) - first) * pack.tokens
            own = np.minimum(np.repeat(own, count) - starts, pack.tokens)
            packed = np.repeat(packed, count)
        else:
            own, starts = np.minimum(own, pack.tokens), np.zeros(len(own), np.int64)
        return Pieces(packed + position, starts, own), -(-own // pack.multiple) * pack.multiple

    def _steps(
        self, position: int, rows: int, pieces: Pieces, sizes: Int64Array, of: list[int], lengths: Int64Array
    ) -> list[PackedStep]:
        """The steps of a window: its packs in the order of their first pieces, permuted."""
        pack, packs = self._pack, dict[int, list[int]]()
        for piece, number in enumerate(of):  # in the order of first pieces, as pieces are in the order of the epoch
            packs.setdefault(number, []).append(piece)
        if not packs:
            return []
        inverse = Feistel(len(packs), mix(self._seed + _PACK_SEED), mix(self._epoch) + position)
        slots: list[list[int]] = [[]] * len(packs)
        for slot, own in zip(
            inverse.apply(np.arange(len(packs), dtype=np.uint64)).tolist(), packs.values(), strict=True
        ):
            slots[slot] = own
        steps, ends = list[PackedStep](), (position + rows, 0)
        for index, first in enumerate(range(0, len(slots), pack.packs)):
            own = slots[first : first + pack.packs]
            following = (position, index + 1) if first + pack.packs < len(slots) else ends
            costs = [sum(size * (pack.quadratic + size) for size in sizes[chosen].tolist()) for chosen in own]
            counts = self._counts(lengths) if index == 0 else Counts()
            packed = [pieces.at(chosen) for chosen in own]
            steps.append(PackedStep(position, index, following, packed, costs, counts))
        return steps

    def _counts(self, lengths: Int64Array) -> Counts:
        long = int((lengths > self._pack.tokens).sum())
        by = {name: long if self._pack.long == name else 0 for name in ("drop", "truncate", "split")}
        empty = int((lengths == 0).sum())
        return Counts(len(lengths), empty, by["drop"], by["truncate"], by["split"])
