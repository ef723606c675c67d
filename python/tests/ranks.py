# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The environment of training processes on this machine."""

from __future__ import annotations

import os
from pathlib import Path


def rank_environment() -> dict[str, str]:
    """Environment in which a process imports the loader from this checkout and uses gloo over loopback, on one core."""
    repository = Path(__file__).parents[2]
    ours = [str(repository / "python/src"), str(repository / "hack")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*ours, os.environ.get("PYTHONPATH", "")]),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
