# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Windows: clumps that follow each other in a shuffled epoch, whose rows are shuffled (docs/order.md, Windows)."""

from __future__ import annotations

from typing import Final

import numpy as np

from kubeflow_datacache.order.feistel import UInt64Array, apply_each, mix

_SEED: Final = 0xD1B54A32D192ED03


class Windows:
    """Permutes the positions of each window of an epoch.

    length: rows of a window without the short clump. regular, missing: where the short clump ends, and how many rows
    fewer it has; 0 if no clump is short.
    """

    def __init__(self, rows: int, seed: int, number: int, length: int, regular: int, missing: int) -> None:
        # the window with the short clump ends here, and later ones begin that much earlier
        short = min(((regular - 1) // length + 1) * length - missing, rows) if missing else rows
        self._rows, self._short = np.uint64(rows), np.uint64(short)
        self._length, self._missing = np.uint64(length), np.uint64(missing)
        self._seed, self._number = mix(seed + _SEED), np.uint64(mix(number))

    def apply(self, positions: UInt64Array) -> UInt64Array:
        """The positions in the sequence of clumps; leaves the input array as it is."""
        if not len(positions):
            return positions
        shift = np.where(positions >= self._short, self._missing, np.uint64(0))
        index = (positions + shift) // self._length
        first = index * self._length - shift
        size = np.minimum(first + self._length, np.where(positions >= self._short, self._rows, self._short)) - first
        offset, number = positions - first, index + self._number
        for n in np.unique(size).tolist():  # at most three: that with the short clump and the last have fewer rows
            chosen = np.flatnonzero(size == n)
            offset[chosen] = apply_each(n, self._seed, number[chosen], offset[chosen])
        return first + offset
