# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The seed by the environment variable SEED."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def run(text: str) -> tuple[int, str, str]:
    """The exit code and the output of a process that prints its seed and those that a test loops over."""
    code = "from seeds import SEED, seeds; print(SEED, seeds(2, failed=[99]))"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "SEED": text}, cwd=Path(__file__).parent,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout.strip(), done.stderr


def test_seeds_by_the_variable() -> None:
    assert run("")[1] == "1 [1, 2, 99]"
    assert run("7")[1] == "7 [7, 8]"
    first, second = (run("random")[1] for _ in range(2))
    assert first != second
    assert first.endswith(" 99]")


@pytest.mark.parametrize("text", ["-1", "x", "1.5", "٧", "18446744073709551616"])
def test_wrong_seeds_are_rejected(text: str) -> None:
    code, _, error = run(text)
    assert (code, f'SEED="{text}": want an integer in [0, 2^64), or "random"' in error) == (1, True)
