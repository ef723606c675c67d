# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Suites that run at the same time choose different ports for their servers."""

import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from kit import ports

# The process's number is where the search starts, so all processes would find the same ports first.
_CODE = """
import os
os.getpid = lambda: 1
from kit import ports
print(*[ports.free_port() for _ in range(50)], flush=True)
input()
"""


def test_processes_are_given_different_ports() -> None:
    folder = Path(ports.__file__).parents[1]
    with ExitStack() as stack:
        started = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", _CODE], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
            )
            for _ in range(4)
        ]
        given: Counter[str] = Counter()
        for process in started:
            assert process.stdout is not None
            given.update(process.stdout.readline().split())
        for process in started:
            process.communicate("\n")
    assert len(given) == 200
    assert set(given.values()) == {1}
