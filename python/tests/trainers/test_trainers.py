# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Trainers that CI does not install take a training step from a real cache, or the summary says NOT TRIED and why.

make test-trainers installs their packages (hack/python/trainers). CI tries JAX on two processes: examples/test_jax.py.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.deadline import limit
from small import small_cache, steps_of

from ranks import rank_environment

OPTIONS: dict[str, Any] = {"global_batch_size": 32, "seed": 7, "tail": "drop"}
RANKS = 2
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def endpoint(server: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cache of the small table."""
    with small_cache(server, tmp_path_factory.mktemp("small")) as one:
        yield one


def run(command: list[str | Path], environment: dict[str, str]) -> list[dict[str, Any]]:
    """What a program printed: a line of JSON for each rank, by rank."""
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=3 * limit(), check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"rank"')]
    return sorted(lines, key=lambda one: one["rank"])


def not_tried(folder: Path, name: str) -> None:
    """Skips a test whose trainer can't be had."""
    failed = folder / f"{name}.failed"
    if failed.exists():
        pytest.skip(f"NOT TRIED {name}: {failed.read_text().strip()}")


@pytest.mark.parametrize("name", ["deepspeed", "mlx", "torchtune", "xgboost"])
def test_a_step(endpoint: str, name: str) -> None:
    """An epoch: the loss falls, and the rows of each step are those of the order."""
    folder = Path(os.environ["TRAINERS"])
    not_tried(folder, name)
    environment = {**rank_environment(), "CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"}
    environment["PYTHONPATH"] += os.pathsep + str(folder / name)
    (only,) = run([sys.executable, HERE / f"{name}_training.py", json.dumps([endpoint, OPTIONS])], environment)
    assert only["steps"] == steps_of(OPTIONS, 0)
    assert only["losses"][-1] < only["losses"][0]


def test_mpi(endpoint: str, tmp_path: Path) -> None:
    """Ranks that mpirun starts on other machines, of which it takes nothing but the variables of Open MPI along.

    In place of sshd on other machines, an agent starts them here, without this process's environment.
    """
    not_tried(Path(os.environ["TRAINERS"]), "mpi")
    agent = tmp_path / "agent"
    keep = 'PATH="$PATH" HOME="$HOME" PYTHONPATH="$PYTHONPATH" GLOO_SOCKET_IFNAME=lo OMP_NUM_THREADS=1'
    agent.write_text(f'#!/bin/bash\nshift\nexec env -i {keep} bash -c "$*"\n')
    agent.chmod(0o755)
    mpirun = shutil.which("mpirun")
    assert mpirun
    command = [mpirun, "--allow-run-as-root", "--mca", "plm_rsh_agent", str(agent), "--mca", "oob_tcp_if_include", "lo"]
    command += [
        "--mca",
        "btl_tcp_if_include",
        "lo",
        "--mca",
        "rtc",
        "^hwloc",
        "-H",
        ",".join(f"node{i}:1" for i in range(RANKS)),
        "-np",
        "2",
    ]
    orders = json.dumps([endpoint, OPTIONS, f"file://{tmp_path / 'meeting'}"])
    job = {"TRAIN_JOB_NAME": "train", "OMPI_TRAIN_JOB_NAME": "train"}
    ranks = run([*command, sys.executable, HERE / "mpi_training.py", orders], {**rank_environment(), **job})
    assert [one["rank"] for one in ranks] == list(range(RANKS))
    for rank, one in enumerate(ranks):
        assert one["steps"] == steps_of(OPTIONS, 0, rank, RANKS)
        assert one["losses"] == ranks[0]["losses"], "averaged over the ranks"
    assert ranks[0]["losses"][-1] < ranks[0]["losses"][0]
