# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A GPT of Megatron-core has the same losses after a resume with another data-parallel size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from forked import run_script
from lake import Lake, Made
from small import served

ROWS, SAVED, STEPS = 400, 5, 12
SCHEMA = pa.schema([("input_ids", pa.list_(pa.int32()))])


def test_losses_are_those_of_a_training_that_goes_on(server: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    rows = [rng.integers(0, 64, n).tolist() for n in np.minimum(rng.lognormal(2.5, 0.8, ROWS) + 1, 48).astype(int)]
    made = Lake(tmp_path).create("gpt", SCHEMA, [pa.table({"input_ids": rows}, schema=SCHEMA)])
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    with served(server, tmp_path, Made("gpt", made.metadata_location)) as endpoint:
        whole, resumed = run_script("examples/megatron_packs.py", endpoint, str(folder), SAVED, STEPS)
    assert (len(whole), len(resumed)) == (4, 2)
    losses = whole[0][0]
    assert len(set(losses)) == STEPS
    for own, shared in whole:  # ranks agree on the loss of each step
        assert own == pytest.approx(losses, rel=1e-12)
        assert shared >= STEPS
    for own, _ in resumed:
        assert own == pytest.approx(losses[SAVED:], rel=1e-12)
