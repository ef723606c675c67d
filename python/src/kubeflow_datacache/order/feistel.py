# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The permutation P(n, seed, epoch) of the epoch order, version 1, applied to many indices at once."""

from __future__ import annotations

import functools
from typing import Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

UInt64Array = npt.NDArray[np.uint64]

LIMIT: Final = 1 << 62  # exclusive limit of all counts in an epoch
_WORD: Final = (1 << 64) - 1
GOLD: Final = 0x9E3779B97F4A7C15
_SCRAMBLE: Final = 0xD6E8FEB86659FD93
_LEAST_BITS: Final = 12
_SMALL: Final = 1 << _LEAST_BITS
# Number of indices permuted at once. Fewer would fit the L1 cache, but every numpy call releases the GIL, and getting
# it back from a busy consumer costs more than the cache saves.
_BLOCK: Final = 1 << 16


class Feistel:
    """A bijection of [0, n), 1 <= n < 2^62: eight Feistel rounds, repeated while the result is n or more.

    Immutable, of constant size, and safe for concurrent use. seed and epoch are taken modulo 2^64.
    """

    def __init__(self, n: int, seed: int, epoch: int) -> None:
        if not 1 <= n < LIMIT:
            raise ValueError(f"permutation of n = {n}: want 1 <= n < 2^62")
        bits = max((n - 1).bit_length(), _LEAST_BITS)
        low, high = bits - bits // 2, bits // 2
        self._n, self._low, self._low_mask = np.uint64(n), np.uint64(low), np.uint64((1 << low) - 1)
        state = mix(mix(seed + GOLD) + epoch)
        self._rounds = [_Round.of(mix(state + i * GOLD), high if i % 2 else low) for i in range(1, 9)]

    def at(self, x: int) -> int:
        """P(x) for one 0 <= x < n."""
        return int(self.apply(np.array([x], np.uint64))[0])

    def inverse(self, y: int) -> int:
        """The x with P(x) = y, for one 0 <= y < n."""
        if self._table is not None:
            return int(np.flatnonzero(self._table == y)[0])
        x = np.array([y], np.uint64)
        while True:
            self._backward(x)
            if x[0] < self._n:
                return int(x[0])

    def apply(self, xs: UInt64Array) -> UInt64Array:
        """Replaces every x in xs (one-dimensional, uint64, below n) by P(x), in place, and returns xs."""
        if self._table is not None:
            xs[:] = self._table[xs]
            return xs
        self._round_all(xs)
        outside = np.flatnonzero(xs >= self._n)
        walkers = xs[outside]
        while outside.size:  # terminates, since a cycle that starts below n returns below n
            self._round_all(walkers)
            xs[outside] = walkers
            still = np.flatnonzero(walkers >= self._n)
            outside, walkers = outside[still], walkers[still]
        return xs

    @functools.cached_property
    def _table(self) -> UInt64Array | None:
        """A table of P for small n: the Feistel domain may be thousands of times larger than n, and so the repetitions
        many."""
        if self._n > _SMALL:
            return None
        if self._n == 1:
            return np.zeros(1, np.uint64)
        jump = np.arange(_SMALL, dtype=np.uint64)
        self._round_all(jump)
        while (jump[: int(self._n)] >= self._n).any():
            (far,) = np.nonzero(jump >= self._n)
            jump[far] = jump[jump[far]]  # doubles the number of steps along the cycle
        return jump[: int(self._n)].copy()

    def _round_all(self, xs: UInt64Array) -> None:
        scratch = np.empty((3, min(len(xs), _BLOCK)), np.uint64)
        for first in range(0, len(xs), _BLOCK):
            self._forward(xs[first : first + _BLOCK], scratch)

    def _forward(self, x: UInt64Array, scratch: UInt64Array) -> None:
        left, right, f = scratch[0, : len(x)], scratch[1, : len(x)], scratch[2, : len(x)]
        np.right_shift(x, self._low, out=left)
        np.bitwise_and(x, self._low_mask, out=right)
        for turn in self._rounds:
            turn.apply(left, right, f)
            left, right = right, left
        np.left_shift(left, self._low, out=left)
        np.bitwise_or(left, right, out=x)

    def _backward(self, x: UInt64Array) -> None:
        left, right, f = x >> self._low, x & self._low_mask, np.empty_like(x)
        for turn in reversed(self._rounds):
            left, right = right, left
            turn.apply(left, right, f)
        x[:] = left << self._low | right


class _Round(NamedTuple):
    """One Feistel round. F(source, key) is truncated to the bits of the target, at most 31: bits 32 and up of a
    product.

    The factor is shifted left in advance, so that these bits are the highest of the 64-bit product and one right shift
    extracts them.
    """

    key: np.uint64
    factor: np.uint64
    shift: np.uint64

    @classmethod
    def of(cls, key: int, bits: int) -> Self:
        """The round for a target of `bits` bits."""
        return cls(np.uint64(key), np.uint64(_SCRAMBLE << 32 - bits & _WORD), np.uint64(64 - bits))

    def apply(self, target: UInt64Array, source: UInt64Array, f: UInt64Array) -> None:
        """target ^= F(source, key); f is a scratch array."""
        np.bitwise_xor(source, self.key, out=f)
        np.multiply(f, self.factor, out=f)
        np.right_shift(f, self.shift, out=f)
        np.bitwise_xor(target, f, out=target)


_recent = functools.lru_cache(256)(Feistel)


def apply_each(n: int, seed: int, epochs: UInt64Array, xs: UInt64Array) -> UInt64Array:
    """P(n, seed, epochs[i]) of each xs[i], which is below n. Neither array is changed."""
    if not len(xs):
        return xs
    if epochs[0] == epochs.min() == epochs.max():
        return _recent(n, seed, int(epochs[0])).apply(xs.copy())
    if n == 1:
        return np.zeros_like(xs)
    bits = max((n - 1).bit_length(), _LEAST_BITS)
    numbers, which = np.unique(epochs, return_inverse=True)
    if n <= _SMALL and len(numbers) <= max(
        4, 2 * _SMALL // n
    ):  # for few permutations, tables cost less than long walks
        out = np.empty_like(xs)
        for i, number in enumerate(numbers.tolist()):
            chosen = np.flatnonzero(which == i)
            out[chosen] = _recent(n, seed, number).apply(xs[chosen])
        return out
    state = _mix_all(np.uint64(mix(seed + GOLD)) + numbers)
    keys = [_mix_all(state + np.uint64(i * GOLD & _WORD)) for i in range(1, 9)]
    out = _rounds(xs, keys, which, bits)
    outside = np.flatnonzero(out >= n)
    while outside.size:  # as in Feistel.apply
        walkers = _rounds(out[outside], keys, which[outside], bits)
        out[outside] = walkers
        outside = outside[walkers >= n]
    return out


def _rounds(xs: UInt64Array, keys: list[UInt64Array], which: npt.NDArray[np.intp], bits: int) -> UInt64Array:
    """Eight rounds of each x with its own keys: keys[i][which[j]] is the key of xs[j] in round i."""
    high = bits // 2
    low = np.uint64(bits - high)
    left, right = xs >> low, xs & np.uint64((1 << int(low)) - 1)
    for i, key in enumerate(keys):
        width = int(low) if i % 2 else high
        left ^= ((right ^ key[which]) * np.uint64(_SCRAMBLE << 32 - width & _WORD)) >> np.uint64(64 - width)
        left, right = right, left
    return left << low | right


def _mix_all(z: UInt64Array) -> UInt64Array:
    """mix of every z."""
    z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return z ^ z >> np.uint64(31)


def mix(z: int) -> int:
    """The finalizer of SplitMix64, of z modulo 2^64."""
    z &= _WORD
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & _WORD
    z = (z ^ z >> 27) * 0x94D049BB133111EB & _WORD
    return z ^ z >> 31
