# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""TRL's SFTTrainer tokenizes and trains on the right rows, also after a resume with other numbers of ranks."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from forked import EPOCHS, SAVED, run_script
from small import small_cache, steps_of

OPTIONS: dict[str, Any] = {"global_batch_size": 23, "seed": 9, "tail": "keep"}


def test_a_checkpoint_of_two_ranks_resumes_with_others(server: Path, tmp_path: Path) -> None:
    with small_cache(server, tmp_path) as endpoint:
        done = run_script("examples/trl_training.py", endpoint, OPTIONS, str(tmp_path / "out"), 2, [1, 4, 3])
    for key, world in (("whole", 2), ("1", 1), ("4", 4), ("3", 3)):
        for rank in range(world):
            want = list(itertools.chain(*(steps_of(OPTIONS, epoch, rank, world) for epoch in range(EPOCHS))))
            assert done[key][rank] == (want if key == "whole" else want[SAVED:]), (key, rank)
    packing, shuffle, grpo = done["refusals"]
    assert packing.startswith("packing = True changes the rows of a step")
    assert shuffle.startswith("shuffle_dataset = True changes the rows of a step")
    assert grpo.startswith("CacheGRPOTrainer: GRPOTrainer repeats and orders prompts itself")
