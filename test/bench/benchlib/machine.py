# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Describes the machine that ran the benchmark."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

REPOSITORY = Path(__file__).resolve().parents[3]


def describe() -> dict[str, str]:
    """The machine, versions, commit and time, in the order of printing."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _output("git", "describe", "--always", "--dirty"),
        "cpu": f"{os.cpu_count()} x {_field('/proc/cpuinfo', 'model name')}",
        "memory": f"{int(_field('/proc/meminfo', 'MemTotal').split()[0]) / 2**20:.0f} GiB",
        "kernel": platform.release(),
        "tcp": Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip(),
        "go": _output("go", "env", "GOVERSION"),
        "pyarrow": pa.__version__,
        "python": platform.python_version(),
    }


def load_average() -> str:
    return " ".join(f"{value:.2f}" for value in os.getloadavg())


def _field(path: str, name: str) -> str:
    for line in Path(path).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return "unknown"


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()
