# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The example runs as described in its docstring, and its model learns."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from kit.deadline import limit

pytest.importorskip("torch", reason="runs in the training environment: make test-loader")

_PYTHON = Path(__file__).resolve().parents[1]


def test_the_example_learns_from_a_cache(pytestconfig: pytest.Config) -> None:
    server = str(pytestconfig.getoption("--server"))
    command = [sys.executable, str(_PYTHON / "examples/reviews.py"), "--server", server]
    environment = {**os.environ, "PYTHONPATH": str(_PYTHON / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--rows", "6000", "--epochs", "2"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=3 * limit(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    last = re.search(r"accuracy of the last epoch: ([\d.]+)%", done.stdout)
    assert last is not None
    assert float(last[1]) > 90, "guessing gives about 50 %"
