# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""malloc's memory, kept between messages rather than given back to the system and fetched anew."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from typing import Final

import pyarrow as pa

# malloc.h of glibc: options of mallopt(3).
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_LARGEST: Final = 32 << 20  # M_MMAP_THRESHOLD's own limit, to which glibc would raise it by itself in steps
_LEAST: Final = 2 * _LARGEST  # what glibc would keep at that limit
_USERS: Final = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")
_asked = {"bytes": 0}  # of glibc, so far


def keep(nbytes: int, environ: Mapping[str, str] = os.environ) -> bool:
    """Lets this process keep nbytes of freed memory, or what an earlier call said if that is more.

    Each message is received into memory of its own, which glibc would give back once it is freed: the kernel then
    clears the pages of every other message anew, 0.2 CPU-seconds a GB. Holds for all of the process; leaves settings
    alone that the user made by mallopt's environment variables. Returns whether it is so: not without glibc.
    """
    if any(name in environ for name in _USERS) or "glibc.malloc." in environ.get("GLIBC_TUNABLES", ""):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # on Linux with musl, and on macOS, there is none
    if mallopt is None:
        return False
    if nbytes > _asked["bytes"]:
        _asked["bytes"] = min(max(nbytes, _LEAST), (1 << 31) - 1)  # mallopt takes an int
        return bool(mallopt(_MMAP_THRESHOLD, _LARGEST)) and bool(mallopt(_TRIM_THRESHOLD, _asked["bytes"]))
    return True


def pool() -> pa.MemoryPool:
    """Where messages and merged rows are put: malloc, under keep. What it gives out is 64-byte aligned.

    Arrow's own pool gives freed memory back within milliseconds, in pages of 2 MiB that the kernel then clears anew:
    for a consumer that takes its time that is more than the bytes that come.
    """
    return pa.system_memory_pool()
