# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The oracle of the epoch order (docs/order.md, version 1), in plain Python integers, written for clarity."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

WORD = 1 << 64
GOLD = 0x9E3779B97F4A7C15
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

    def _walk(self, x: int, *, forwards: bool) -> int:
        if self.n == 1:
            return 0
        x = self._rounds(x, forwards=forwards)
        while x >= self.n:
            x = self._rounds(x, forwards=forwards)
        return x

    def _rounds(self, x: int, *, forwards: bool) -> int:
        left, right = divmod(x, 1 << self.low_bits)
        for i in range(8) if forwards else range(7, -1, -1):
            if i % 2 == 0:
                left ^= self._f(right, i) % (1 << self.high_bits)
            else:
                right ^= self._f(left, i) % (1 << self.low_bits)
        return (left << self.low_bits) + right

    def _f(self, half: int, i: int) -> int:
        return (half ^ self.keys[i]) * 0xD6E8FEB86659FD93 % WORD >> 32


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
    global_batch: int = 1
    tail: Tail = "keep"
    rank: int = 0
    world: int = 1
    worker: int = 0
    workers: int = 1
    start_step: int = 0

    def sequence(self) -> list[int]:
        """The row at each position of the epoch, before the division into steps and ranks."""
        if not self.shuffle or self.rows == 0:
            return list(range(self.rows))
        clumps = -(-self.rows // self.clump)
        p = Permutation(clumps, self.seed, self.epoch)
        first = [p.at(i) * self.clump for i in range(clumps)]
        return [row for start in first for row in range(start, min(start + self.clump, self.rows))]

    def steps(self) -> int:
        """The number of steps of every rank."""
        return self.rows // self.global_batch if self.tail == "drop" else -(-self.rows // self.global_batch)

    def share(self) -> list[Step]:
        """The steps of this worker, from start_step on."""
        sequence, out = self.sequence(), []
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
