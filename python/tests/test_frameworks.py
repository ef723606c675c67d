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
from loopback import free_port
from small import small_cache, steps_of

from ranks import rank_environment

OPTIONS: dict[str, Any] = {"global_batch_size": 23, "seed": 9, "tail": "keep"}
SAVED = 3
SECONDS = 600  # time limit of a whole training, generous for slow machines


@pytest.fixture(scope="module")
def endpoint(server: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cache of the small table."""
    with small_cache(server, tmp_path_factory.mktemp("small")) as one:
        yield one


@pytest.mark.parametrize(("world", "workers"), [(1, 2), (2, 0)])
@pytest.mark.parametrize("kind", ["lightning", "accelerate", "huggingface"])
def test_two_epochs_and_a_checkpoint(endpoint: str, kind: str, world: int, workers: int, tmp_path: Path) -> None:
    order = json.dumps([endpoint, OPTIONS, kind, str(tmp_path), workers])
    launch = ["-m", "torch.distributed.run", f"--nproc-per-node={world}", f"--master-port={free_port()}"]
    run = subprocess.run(
        [sys.executable, *(launch if world > 1 else []), str(Path(__file__).parent / "frameworks.py"), order],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
        env=rank_environment(),
    )
    assert run.returncode == 0, run.stderr
    for rank in range(world):
        whole, rest = json.loads((tmp_path / f"read-{rank}.json").read_text())
        want = list(itertools.chain(*(steps_of(OPTIONS, epoch, rank, world) for epoch in range(2))))
        assert whole == want
        assert rest == want[SAVED:]
