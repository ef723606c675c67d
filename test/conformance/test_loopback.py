# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Suites that run at the same time choose different ports for their servers."""

import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import loopback

# The process's number is where the search starts, so all processes would find the same ports first.
_CODE = """
import os
os.getpid = lambda: 1
import loopback
print(*[loopback.free_port() for _ in range(50)], flush=True)
input()
"""


def test_processes_are_given_different_ports() -> None:
    folder = Path(loopback.__file__).parent
    with ExitStack() as stack:
        started = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", _CODE], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
            )
            for _ in range(4)
        ]
        ports: Counter[str] = Counter()
        for process in started:
            assert process.stdout is not None
            ports.update(process.stdout.readline().split())
        for process in started:
            process.communicate("\n")
    assert len(ports) == 200
    assert set(ports.values()) == {1}
