# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The oracle of the order of epochs and mixtures (docs/order.md), in plain integers."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

WORD = 1 << 64
GOLD = 0x9E3779B97F4A7C15
WINDOW = 0xD1B54A32D192ED03  # added to the seed for the order within windows
LANES = 32  # ranges of the rows in version 2
Tail = Literal["drop", "pad", "keep"]


def mix(z: int) -> int:
    """The finalizer of SplitMix64."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % WORD
    return z ^ (z >> 31)


class Permutation:
    """A bijection of [0, n), 1 <= n < 2^62: a Feistel network of eight rounds with cycle walking."""

    def __init__(self, n: int, seed: int, epoch: int) -> None:
        if not 1 <= n < 1 << 62:
            raise ValueError(f"n: {n}, want 1 <= n < 2^62")
        self.n = n
        bits = max((n - 1).bit_length(), 12)
        self.high_bits = bits // 2
        self.low_bits = bits - self.high_bits
        state = mix((mix((seed + GOLD) % WORD) + epoch) % WORD)
        self.keys: list[int] = []
        for _ in range(8):
            state = (state + GOLD) % WORD
            self.keys.append(mix(state))

    def at(self, x: int) -> int:
        """The element at position x."""
        return self._walk(x, forwards=True)

    def inverse(self, y: int) -> int:
        """The position of element y."""
        return self._walk(y, forwards=False)

    def all(self) -> list[int]:
        """The elements at all positions: [at(0), ..., at(n - 1)]."""
        if self.n == 1:
            return [0]
        domain = np.arange(1 << (self.high_bits + self.low_bits), dtype=np.uint64)
        images: list[int] = self._rounds(domain, forwards=True).tolist()
        out = images[: self.n]
        for x, image in enumerate(out):
            while image >= self.n:  # all walks together are no longer than the list of images
                image = images[image]
            out[x] = image
        return out

    def _walk(self, x: int, *, forwards: bool) -> int:
        if self.n == 1:
            return 0
        x = self._rounds(x, forwards=forwards)
        while x >= self.n:
            x = self._rounds(x, forwards=forwards)
        return x

    def _rounds(self, x: Any, *, forwards: bool) -> Any:
        """The network of x: an integer, or an array of 64-bit integers."""
        left, right = divmod(x, 1 << self.low_bits)
        for i in range(8) if forwards else range(7, -1, -1):
            if i % 2 == 0:
                left ^= self._f(right, i) % (1 << self.high_bits)
            else:
                right ^= self._f(left, i) % (1 << self.low_bits)
        return (left << self.low_bits) + right

    def _f(self, half: Any, i: int) -> Any:
        return ((half ^ self.keys[i]) * 0xD6E8FEB86659FD93 & (WORD - 1)) >> 32


class Step(NamedTuple):
    """A worker's part of one step: its rows, and which of them are real (all, except with tail "pad")."""

    number: int
    rows: list[int]
    valid: list[bool]


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """The request of one epoch, with the field names of the wire contract. rows is the dataset's size."""

    rows: int
    seed: int = 0
    epoch: int = 0
    shuffle: bool = True
    clump: int = 1
    window: int = 0
    global_batch: int = 1
    tail: Tail = "keep"
    rank: int = 0
    world: int = 1
    worker: int = 0
    workers: int = 1
    start_step: int = 0
    order: Literal[1, 2] = 1

    def sequence(self) -> Sequence[int]:
        """The row at each position of the epoch, before the division into steps and ranks."""
        if not self.shuffle or self.rows == 0:
            return range(self.rows)
        if self.order == 2:
            return self._laned()
        clumps = -(-self.rows // self.clump)
        first = [clump * self.clump for clump in Permutation(clumps, self.seed, self.epoch).all()]
        of_clumps = [list(range(start, min(start + self.clump, self.rows))) for start in first]
        if self.window == 0:
            return list(itertools.chain(*of_clumps))
        out: list[int] = []
        for i, begin in enumerate(range(0, clumps, self.window)):
            rows = list(itertools.chain(*of_clumps[begin : begin + self.window]))
            out += [rows[x] for x in Permutation(len(rows), *self._keys_of_window(i)).all()]
        return out

    def _keys_of_window(self, i: int) -> tuple[int, int]:
        """Seed and epoch of the permutation of a window's rows."""
        return mix((self.seed + WINDOW) % WORD), (mix(self.epoch) + i) % WORD

    def _laned(self) -> list[int]:
        """The sequence in version 2: from each slot a step takes the next rows, so many that the slot's rows taken by
        the first steps are in proportion."""
        slots: list[list[int]] = []
        for i in range(LANES):
            lane = Permutation(LANES, mix((self.seed + 1) % WORD), self.epoch).at(i)
            first, end = (n * self.rows // LANES for n in (lane, lane + 1))
            seed = mix((self.seed + GOLD * (lane + 2)) % WORD)
            own = Epoch(rows=end - first, seed=seed, epoch=self.epoch, clump=self.clump, window=self.window)
            slots.append([first + row for row in own.sequence()])
        before = [sum(map(len, slots[:i])) for i in range(LANES + 1)]  # rows of the slots before each

        def edge(step: int, slot: int) -> int:
            return min(step * self.global_batch, self.rows) * before[slot] // self.rows

        out: list[int] = []
        for step in range(-(-self.rows // self.global_batch)):
            for i, rows in enumerate(slots):
                begin, end = (edge(s, i + 1) - edge(s, i) for s in (step, step + 1))
                out += rows[begin:end]
        return out

    def row(self, position: int) -> int:
        """The row at one position; the same as sequence()[position], for large epochs too."""
        if not self.shuffle:
            return position
        clumps = -(-self.rows // self.clump)
        missing = clumps * self.clump - self.rows
        short = _inverse(clumps, self.seed, self.epoch, clumps - 1)  # of the sequence, the clump that is short
        if self.window:

            def start(i: int) -> int:
                """The first position of a window."""
                before = min(i * self.window, clumps)
                return before * self.clump - missing * (short < before)

            i = position // (self.window * self.clump)
            i += start(i + 1) <= position
            position = start(i) + permuted(start(i + 1) - start(i), *self._keys_of_window(i), position - start(i))
        if position >= (short + 1) * self.clump - missing:
            position += missing
        return permuted(clumps, self.seed, self.epoch, position // self.clump) * self.clump + position % self.clump

    def steps(self) -> int:
        """The number of steps of every rank."""
        return self.rows // self.global_batch if self.tail == "drop" else -(-self.rows // self.global_batch)

    def share(self) -> list[Step]:
        """The steps of this worker, from start_step on."""
        of_all = replace(self, tail="keep", rank=0, world=1, worker=0, workers=1, start_step=0)
        sequence, out = _sequence(of_all), []
        for number in range(self.start_step, self.steps()):
            if number % self.workers != self.worker:
                continue
            begin = number * self.global_batch
            size = min(self.global_batch, self.rows - begin) if self.tail == "keep" else self.global_batch
            mine = range(begin + self.rank * size // self.world, begin + (self.rank + 1) * size // self.world)
            out.append(Step(number, [sequence[p % self.rows] for p in mine], [p < self.rows for p in mine]))
        return out

    def share_rows(self) -> list[int]:
        """The rows of share(), concatenated: the order in which the data nodes together stream them."""
        return [row for step in self.share() for row in step.rows]

    def of(self, rank: int, world: int) -> Epoch:
        """The same epoch for another rank."""
        return replace(self, rank=rank, world=world)


SMALL = 1 << 14  # up to this size, whole permutations are kept: a single element may take as many rounds


def permuted(n: int, seed: int, epoch: int, x: int) -> int:
    """P(n, seed, epoch) of x."""
    return _elements(n, seed, epoch)[x] if n <= SMALL else Permutation(n, seed, epoch).at(x)


@functools.lru_cache(256)
def _inverse(n: int, seed: int, epoch: int, y: int) -> int:
    return Permutation(n, seed, epoch).inverse(y)


@functools.lru_cache(256)
def _elements(n: int, seed: int, epoch: int) -> list[int]:
    return Permutation(n, seed, epoch).all()


_sequence = functools.lru_cache(256)(Epoch.sequence)


@dataclass(frozen=True, kw_only=True)
class Split:
    """The part of the filtered rows that a request uses, with the field names of the wire contract, but for from."""

    seed: int
    of: int
    start: int
    to: int
    shuffle: bool = True

    def rows(self, filtered: int) -> list[int]:
        """The filtered row of each row of the part."""
        positions = range(self.start * filtered // self.of, self.to * filtered // self.of)
        return [permuted(filtered, self.seed, 0, p) for p in positions] if self.shuffle else list(positions)

    def field(self) -> dict[str, int | bool]:
        """The field of a request."""
        return {"seed": self.seed, "of": self.of, "from": self.start, "to": self.to, "shuffle": self.shuffle}


class Draw(NamedTuple):
    """What a mixture draws at one position: a part, and one of its rows."""

    part: int
    row: int


class MixStep(NamedTuple):
    """A worker's part of one step of a mixture; valid as in Step."""

    number: int
    draws: list[Draw]
    valid: list[bool]


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """The requests for all parts of a mixture, with the field names of the wire contract. parts: (rows, weights)."""

    parts: tuple[tuple[int, tuple[int, ...]], ...]
    phases: tuple[int, ...] = ()
    unit: Literal["row", "batch"] = "row"
    length: int
    seed: int = 0
    epoch: int = 0
    shuffle: bool = True
    clump: int = 1
    window: int = 0
    global_batch: int = 1
    tail: Tail = "keep"
    rank: int = 0
    world: int = 1
    worker: int = 0
    workers: int = 1
    start_step: int = 0

    def draw(self, position: int) -> Draw:
        """The part and row at a position of the epoch."""
        unit = self.global_batch if self.unit == "batch" else 1
        g, drawn, phase = self.epoch * self.length + position, [0] * len(self.parts), 0
        while phase < len(self.phases) and g >= self.phases[phase]:
            total = sum(weights[phase] for _, weights in self.parts)
            drawn = [d + self.phases[phase] // total * w[phase] for d, (_, w) in zip(drawn, self.parts, strict=True)]
            g, phase = g - self.phases[phase], phase + 1
        weights = [w[phase] for _, w in self.parts]
        number, within = divmod(g, unit)
        block, slot = divmod(number, sum(weights))
        slot = permuted(sum(weights), mix((self.seed + 1 + phase) % WORD), block, slot)
        part = 0
        while slot >= weights[part]:
            slot, part = slot - weights[part], part + 1
        k = drawn[part] + (block * weights[part] + slot) * unit + within
        return Draw(part, self.row(part, k))

    def row(self, part: int, k: int) -> int:
        """The k-th row that a part contributes."""
        rows = self.parts[part][0]
        epoch, position = divmod(k, rows)
        seed = mix((self.seed + GOLD * (part + 2)) % WORD)
        order = Epoch(rows=rows, seed=seed, epoch=epoch, shuffle=self.shuffle, clump=self.clump, window=self.window)
        return order.row(position)

    def steps(self) -> int:
        """The number of steps of every rank."""
        return Epoch(rows=self.length, global_batch=self.global_batch, tail=self.tail).steps()

    def share(self) -> list[MixStep]:
        """The steps of this worker, from start_step on."""
        names = ("global_batch", "tail", "rank", "world", "worker", "workers", "start_step")
        positions = Epoch(rows=self.length, shuffle=False, **{name: getattr(self, name) for name in names})
        return [MixStep(s.number, [self.draw(p) for p in s.rows], s.valid) for s in positions.share()]

    def part_rows(self, part: int) -> list[int]:
        """The rows of one part in share(), concatenated: the order in which its data nodes together stream them."""
        return [draw.row for step in self.share() for draw in step.draws if draw.part == part]
