# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Lightning, Accelerate and Hugging Face's Trainer get the right rows, also after a resume. Uses the real packages."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.deadline import limit
from kit.ports import free_port
from small import small_cache, steps_of

from ranks import rank_environment

OPTIONS: dict[str, Any] = {"global_batch_size": 23, "seed": 9, "tail": "keep"}
SAVED = 3


@pytest.fixture(scope="module")
def endpoint(server: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cache of the small table."""
    with small_cache(server, tmp_path_factory.mktemp("small")) as one:
        yield one


def train(endpoint: str, kind: str, world: int, workers: int, folder: Path, runs: list[bool]) -> list[Any]:
    """Runs trainings, of which some resume; returns the ids of each rank's steps in each."""
    order = json.dumps([endpoint, OPTIONS, kind, str(folder), workers, runs])
    launch = ["-m", "torch.distributed.run", f"--nproc-per-node={world}", f"--master-port={free_port()}"]
    run = subprocess.run(
        [sys.executable, *(launch if world > 1 else []), str(Path(__file__).parent / "frameworks.py"), order],
        capture_output=True,
        text=True,
        check=False,
        timeout=3 * limit(),
        env=rank_environment(),
    )
    assert run.returncode == 0, run.stderr
    return [json.loads((folder / f"read-{rank}.json").read_text()) for rank in range(world)]


def steps(rank: int, world: int) -> list[list[int]]:
    """The ids of a rank's steps in two epochs."""
    return list(itertools.chain(*(steps_of(OPTIONS, epoch, rank, world) for epoch in range(2))))


@pytest.mark.parametrize("kind", ["lightning", "accelerate", "huggingface"])
def test_two_epochs_and_a_checkpoint(endpoint: str, kind: str, tmp_path: Path) -> None:
    (own,) = train(endpoint, kind, 1, 2, tmp_path, [False, True])
    assert own == [steps(0, 1), steps(0, 1)[SAVED:]]


@pytest.mark.parametrize("kind", [pytest.param("lightning", marks=pytest.mark.night), "accelerate"])
def test_a_checkpoint_of_two_ranks_resumes_with_one(endpoint: str, kind: str, tmp_path: Path) -> None:
    for rank, own in enumerate(train(endpoint, kind, 2, 0, tmp_path, [False])):
        assert own == [steps(rank, 2)]
    assert train(endpoint, kind, 1, 0, tmp_path, [True]) == [[steps(0, 1)[SAVED:]]]


@pytest.mark.night
def test_two_ranks_of_hugging_faces_trainer(endpoint: str, tmp_path: Path) -> None:
    """examples/test_trl.py resumes its trainings with other numbers of ranks."""
    for rank, own in enumerate(train(endpoint, "huggingface", 2, 0, tmp_path, [False, True])):
        assert own == [steps(rank, 2), steps(rank, 2)[SAVED:]]
