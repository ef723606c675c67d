# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Ray Train: each worker gets its own rows, also after a failure."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kit.deadline import limit
from ray_environment import ray_environment
from ray_training import EPOCHS, FAILS, SAVED, WORKERS
from small import small_cache, steps_of

OPTIONS: dict[str, Any] = {"global_batch_size": 23, "seed": 9, "tail": "keep"}


@pytest.mark.skipif(not os.environ.get("RAY_RESTARTS"), reason="Ray's restart takes most of a minute: make test-ray")
def test_two_epochs_and_a_failure(server: Path, tmp_path: Path) -> None:
    paths = [str(Path(__file__).parents[2] / "src"), os.environ.get("PYTHONPATH", "")]
    with small_cache(server, tmp_path) as endpoint, ray_environment() as environment:
        config = {"endpoint": endpoint, "options": OPTIONS, "folder": str(tmp_path)}
        run = subprocess.run(
            [sys.executable, Path(__file__).parent / "ray_training.py", json.dumps(config)],
            capture_output=True,
            text=True,
            check=False,
            timeout=3 * limit(),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment},
        )
    assert run.returncode == 0, run.stdout + run.stderr
    for rank in range(WORKERS):
        want = list(itertools.chain(*(steps_of(OPTIONS, epoch, rank, WORKERS) for epoch in range(EPOCHS))))
        assert json.loads((tmp_path / f"{rank}-0.json").read_text()) == want[:FAILS]
        assert json.loads((tmp_path / f"{rank}-1.json").read_text()) == want[SAVED:]
