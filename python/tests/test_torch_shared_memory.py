# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A full /dev/shm is an error in the training, which says what to do. It must not wait for ever."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from kit.deadline import limit
from small import small_cache

from ranks import rank_environment

pytest.importorskip("torch")

MOUNT = 'mount -t tmpfs -o size=192k tmpfs /dev/shm && exec "$@"'  # room for the semaphores of worker processes


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="mounts a /dev/shm of its own: needs root"
)
@pytest.mark.parametrize("kind", ["rows", "transform"])
def test_full_shared_memory_is_an_error(server: Path, tmp_path: Path, kind: str) -> None:
    script = str(Path(__file__).parent / "full_shared_memory.py")
    with small_cache(server, tmp_path) as endpoint:
        run = subprocess.run(
            ["unshare", "--mount", "sh", "-c", MOUNT, "sh", sys.executable, script, endpoint, kind],
            capture_output=True,
            text=True,
            check=False,
            timeout=limit(),
            env=rank_environment(),
        )
    assert run.returncode == 0, run.stderr
    for words in ["could not send a batch", "/dev/shm, where 0 of 0 MiB are free", "emptyDir of medium Memory"]:
        assert words in run.stdout, run.stderr
