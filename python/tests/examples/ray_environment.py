# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A Ray of a program's own."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Generator


@contextlib.contextmanager
def ray_environment() -> Generator[dict[str, str]]:
    """Variables for a program whose Ray is to run on this machine alone, however slow, and to leave nothing behind."""
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:  # sockets: short paths
        yield {
            "RAY_ADDRESS": "local",
            "RAY_TMPDIR": folder,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "900",
            "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",  # each report waits for one
            "RAY_memory_monitor_refresh_ms": "0",  # else it kills workers for what other programs hold
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
        }
