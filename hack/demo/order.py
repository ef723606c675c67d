# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which row comes when: the order of an epoch (design: order, version 1) with numpy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]

_MASK = (1 << 64) - 1
_GOLD = 0x9E3779B97F4A7C15
_SCRAMBLE = np.uint64(0xD6E8FEB86659FD93)


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """One epoch over n rows, in steps of global_batch rows. tail="keep": the last step may be short."""

    rows: int
    seed: int
    number: int
    global_batch: int

    @property
    def steps(self) -> int:
        """How many steps the epoch has; the same for every rank."""
        return -(-self.rows // self.global_batch)

    def share(self, step: int, rank: int, world: int) -> tuple[int, int]:
        """The positions [lo, hi) of the epoch's sequence that the rank gets in the step."""
        first = step * self.global_batch
        size = min(self.global_batch, self.rows - first)
        return first + rank * size // world, first + (rank + 1) * size // world

    def sequence(self) -> Rows:
        """The shuffled rows: position p of the epoch holds row sequence()[p]."""
        return permutation(self.rows, self.seed, self.number)


def permutation(n: int, seed: int, epoch: int) -> Rows:
    """All of P(n, seed, epoch): a bijection of [0, n), the same in every language that keeps the definition."""
    if n < 2:
        return np.zeros(n, np.int64)
    bits = max((n - 1).bit_length(), 12)
    low = np.uint64(bits - bits // 2)
    keys = _keys(seed, epoch)
    out = _rounds(np.arange(n, dtype=np.uint64), keys, low, bits)
    outside = np.flatnonzero(out >= n)
    while outside.size:  # cycle walking: what fell outside [0, n) goes through the rounds again
        out[outside] = _rounds(out[outside], keys, low, bits)
        outside = outside[out[outside] >= n]
    return out.astype(np.int64)


def _rounds(x: npt.NDArray[np.uint64], keys: list[np.uint64], low: np.uint64, bits: int) -> npt.NDArray[np.uint64]:
    low_mask, high_mask = np.uint64((1 << int(low)) - 1), np.uint64((1 << (bits // 2)) - 1)
    left, right = x >> low, x & low_mask
    for i in range(0, 8, 2):
        left = left ^ (((right ^ keys[i]) * _SCRAMBLE >> np.uint64(32)) & high_mask)
        right = right ^ (((left ^ keys[i + 1]) * _SCRAMBLE >> np.uint64(32)) & low_mask)
    return left << low | right


def _keys(seed: int, epoch: int) -> list[np.uint64]:
    state = _mix(_mix(seed + _GOLD) + epoch)
    return [np.uint64(_mix(state + i * _GOLD)) for i in range(1, 9)]


def _mix(z: int) -> int:
    z &= _MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & _MASK
    return z ^ z >> 31
