# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Megatron gets the right rows, also from its consumed samples with other data-parallel sizes."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import pytest
from forked import EPOCHS, SAVED, run_script
from small import ROWS, small_cache, steps_of

OPTIONS: dict[str, Any] = {"global_batch_size": 24, "seed": 9, "tail": "drop"}
# key, ranks, tensor-parallel size, whether it resumes
TRAININGS = [("whole", 4, 2, False), ("dp 1", 1, 1, True), ("dp 4", 4, 1, True), ("dp 3", 3, 1, True)]


def check(server: Path, folder: Path, package: str | None) -> list[str]:
    """Runs the trainings and compares each step's ids with the order; returns what was refused."""
    with small_cache(server, folder) as endpoint:
        group = OPTIONS["global_batch_size"]
        done = run_script("examples/megatron_training.py", endpoint, group, str(folder / "out"), TRAININGS, package)
    for key, world, tensor_parallel, resumed in TRAININGS:
        ranks = world // tensor_parallel
        assert sorted(rank for rank, _, _ in done[key]) == sorted(list(range(ranks)) * tensor_parallel)
        begin, rows = SAVED if resumed else 0, ROWS // group * group
        for rank, steps, proved in done[key]:
            want = list(itertools.chain(*(steps_of(OPTIONS, epoch, rank, ranks) for epoch in range(EPOCHS))))
            assert steps == want[begin:], (key, rank)
            assert proved == [[0, rows - begin * group, begin], [1, rows, 0]], (key, rank)
    return done["refusals"]


def test_consumed_samples_resume_with_others(server: Path, tmp_path: Path) -> None:
    (ramp,) = check(server, tmp_path, None)
    assert ramp.startswith("consumed_samples = 25 is no multiple of global_batch_size = 24")


@pytest.mark.skipif(not os.environ.get("MEGATRON_BRIDGE"), reason="wants Megatron-Bridge: make test-megatron-bridge")
def test_megatron_bridge(server: Path, tmp_path: Path) -> None:
    _, other = check(server, tmp_path, os.environ["MEGATRON_BRIDGE"])
    assert other.startswith("state: seed = 9, but this loader has 10")
