# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Memory for messages is fetched from the system once, unless the user set malloc otherwise."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from kubeflow_datacache import heap

GLIBC = hasattr(ctypes.CDLL(None), "gnu_get_libc_version")
# A process of its own, because the setting stays. Prints the share of 40 arrays of 6 MB, two of them alive at a time,
# whose pages the kernel had to make.
PROGRAM = """
import resource
import numpy as np
from kubeflow_datacache import heap

def faults(rounds):
    begin = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(rounds):
        one = np.ones(6 << 20, np.uint8)
        two = np.ones(6 << 20, np.uint8)
        del one, two
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - begin) * 4096 / (rounds * 2 * (6 << 20))

assert heap.keep(64 << 20, {})
faults(3)
print(faults(20))
"""


@pytest.mark.skipif(not GLIBC, reason="mallopt is glibc's")
def test_freed_memory_is_used_again() -> None:
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=300)
    assert float(run.stdout) < 0.1


@pytest.mark.parametrize(
    "environ",
    [
        {"MALLOC_TRIM_THRESHOLD_": "1"},
        {"MALLOC_MMAP_THRESHOLD_": "1"},
        {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=1"},
    ],
)
def test_what_the_user_set_stays(environ: dict[str, str]) -> None:
    assert not heap.keep(64 << 20, environ)
