# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""torchtitan's trainer gets the right rows, also from its own checkpoint with other data-parallel degrees."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from forked import EPOCHS, SAVED, run_script
from small import ROWS, small_cache, steps_of

OPTIONS: dict[str, Any] = {"global_batch_size": 24, "seed": 9, "tail": "drop"}


def test_a_checkpoint_of_two_ranks_resumes_with_others(server: Path, tmp_path: Path) -> None:
    with small_cache(server, tmp_path) as endpoint:
        group = OPTIONS["global_batch_size"]
        done = run_script("examples/torchtitan_training.py", endpoint, group, str(tmp_path / "out"), 2, [1, 4, 3])
    rows = ROWS // group * group
    assert sorted(itertools.chain(*done["validated"])) == sorted(list(range(rows)) * 2), "one epoch each time"
    for key, world, parts in (("whole", 2, 1), ("1", 1, 1), ("4", 4, 1), ("3", 3, 1), ("parts", 2, 2)):
        begin = 0 if key == "whole" else SAVED
        for rank in range(world * parts):
            want = list(itertools.chain(*(steps_of(OPTIONS, epoch, rank // parts, world) for epoch in range(EPOCHS))))
            steps, proved = done[key][rank]
            assert steps == want[begin:], (key, rank)
            assert proved == [[0, rows - begin * group, begin], [1, rows, 0]], (key, rank)
