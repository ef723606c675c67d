# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A small table served by a real `cacheserver local`, and the rows expected in each step of an epoch."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from lake import Lake, Made
from order import Epoch as Oracle
from server import Caches
from wide import SCHEMA, rows_of

ROWS = 161


@contextlib.contextmanager
def small_cache(binary: Path, folder: Path, rows: int = ROWS) -> Generator[str]:
    """Yields the endpoint of a cache with the first rows of wide.py's table on two data nodes."""
    with served(binary, folder, small_table(folder, rows)) as endpoint:
        yield endpoint


def small_table(folder: Path, rows: int) -> Made:
    """Writes the table as two files."""
    cuts = [(0, rows // 3), (rows // 3, rows)]
    parts = [pa.Table.from_batches([rows_of(np.arange(lo, hi))]) for lo, hi in cuts]
    return Made("small", Lake(folder).create("small", SCHEMA, parts).metadata_location)


@contextlib.contextmanager
def served(binary: Path, folder: Path, table: Made) -> Generator[str]:
    """Yields the endpoint of a cache of the table."""
    caches = Caches(binary, folder / "logs")
    try:
        yield caches.of(table).endpoint
    finally:
        caches.close()


def steps_of(options: dict[str, Any], epoch: int, rank: int = 0, world: int = 1, rows: int = ROWS) -> list[list[int]]:
    """The expected row ids in each step of a rank."""
    own = {k: v for k, v in options.items() if k in ("seed", "shuffle", "clump", "window", "tail")}
    oracle = Oracle(rows=rows, epoch=epoch, global_batch=options["global_batch_size"], rank=rank, world=world, **own)
    return [step.rows for step in oracle.share()]
