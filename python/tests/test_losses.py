# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A training has the same losses with any number of ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from small import small_cache

pytest.importorskip("transformers")
from forked import run_script

ROWS = 400
TRAININGS = [
    ("weight", 1), ("weight", 2), ("weight", 3), ("weight", 4), ("weight", 8), ("means", 3),
    ("tree", 1), ("tree", 2), ("tree", 4), ("tree", 8),
]  # fmt: skip


@pytest.mark.night
def test_losses_with_any_number_of_ranks(server: Path, tmp_path: Path) -> None:
    with small_cache(server, tmp_path, ROWS) as endpoint:
        done = run_script("losses.py", endpoint, TRAININGS)
    results: dict[tuple[str, int], tuple[list[float], str]] = {}
    for (way, world), ranks in zip(TRAININGS, done, strict=True):
        assert ranks.count(ranks[0]) == world, "all ranks have the same losses and weights"
        results[way, world] = ranks[0]
    losses = results["weight", 1][0]
    assert len(losses) == 12
    assert losses[-1] != losses[0]
    for world in (2, 3, 4, 8):
        assert results["weight", world][0] == pytest.approx(losses, rel=1e-6), world
    assert results["tree", 1][0] == pytest.approx(losses, rel=1e-6)
    for world in (2, 4, 8):
        assert results["tree", world] == results["tree", 1], f"{world} ranks: losses and weights, bit for bit"
    assert results["means", 3][0] != pytest.approx(losses, rel=1e-5), "a mean of means of 10, 11 and 11 rows"
