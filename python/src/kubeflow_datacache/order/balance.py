# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which rank gets which rows of a step, so that all have about as much work (docs/order.md, Balance)."""

from __future__ import annotations

import heapq
from typing import Final

import numpy as np

from kubeflow_datacache.order.pack import Int64Array

QUADRATIC: Final = 61_035  # the length at which attention costs as much as the rest: of a model of 8 billion parameters


def balance(lengths: Int64Array, world: int) -> list[list[int]]:
    """For each rank the rows of a step that it gets, by their place in the step, ascending.

    The longest first, each to the rank with the least cost so far. A row of length l costs l * (QUADRATIC + l), and one
    without length as much as one of length 1, so that no rank gets all of those.
    """
    ranks: list[list[int]] = [[] for _ in range(world)]
    least = [(0, rank) for rank in range(world)]
    for row in np.argsort(-lengths, kind="stable").tolist():
        cost, rank = least[0]
        length = max(1, int(lengths[row]))
        ranks[rank].append(row)
        heapq.heapreplace(least, (cost + length * (QUADRATIC + length), rank))
    return [sorted(rows) for rows in ranks]
