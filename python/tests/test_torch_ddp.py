# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Distributed data-parallel training in real processes: all ranks get the same number of steps and the same model."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small import small_cache, steps_of

pytest.importorskip("torch")
from ddp import Run, train

ROWS = 41  # divisible by no batch size and no world size
# Runs with forked workers come first, as reading without workers connects the rank.
RUNS = [
    Run(options={"global_batch_size": 12, "tail": "pad", "seed": 3}, workers=2, epochs=2),
    Run(options={"global_batch_size": 12, "tail": "drop"}),
    Run(options={"global_batch_size": 12, "tail": "pad"}),
    Run(options={"global_batch_size": 10, "tail": "keep"}),
    Run(options={"global_batch_size": 2, "tail": "keep"}),  # the world of 3 is larger than the batch
]


@pytest.fixture(scope="module")
def endpoint(server: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cache of the small table."""
    with small_cache(server, tmp_path_factory.mktemp("small"), ROWS) as one:
        yield one


def test_every_world_has_the_same_steps_and_learns_the_same(endpoint: str, tmp_path: Path) -> None:
    alone, *others = [train(endpoint, RUNS, world, tmp_path) for world in (1, 2, 3)]
    for number, run in enumerate(RUNS):
        want = [step for epoch in range(run.epochs) for step in counted(run.options, epoch)]
        assert alone[0][number].steps == want
        for ranks in others:
            results = [rank[number] for rank in ranks]
            assert {len(one.steps) for one in results} == {len(want)}, run
            shares = zip(*(one.steps for one in results), strict=True)
            assert [list(itertools.chain(*step)) for step in shares] == want, run
            assert all(one.weights == results[0].weights for one in results), run
            assert results[0].weights == pytest.approx(alone[0][number].weights, rel=1e-9), run


def counted(options: dict[str, Any], epoch: int) -> list[list[int]]:
    """The expected rows of each step over all ranks, without padding."""
    steps = steps_of(options, epoch, rows=ROWS)
    if options["tail"] == "pad":
        steps[-1] = steps[-1][: ROWS % options["global_batch_size"]]
    return steps
