# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The environment of training processes on this machine."""

from __future__ import annotations

import os
from pathlib import Path


def rank_environment() -> dict[str, str]:
    """Environment in which a process imports the loader from this checkout and uses gloo over loopback, on one core."""
    src = str(Path(__file__).parents[1] / "src")
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([src, os.environ.get("PYTHONPATH", "")]),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
