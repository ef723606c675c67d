# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A small table behind a real `cacheserver local`, and what an epoch of it must give."""

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
    """The endpoint of a cache of wide.py's first rows on two data nodes."""
    with served(binary, folder, small_table(folder, rows)) as endpoint:
        yield endpoint


def small_table(folder: Path, rows: int) -> Made:
    """The table, in two files."""
    cuts = [(0, rows // 3), (rows // 3, rows)]
    parts = [pa.Table.from_batches([rows_of(np.arange(lo, hi))]) for lo, hi in cuts]
    return Made("small", Lake(folder).create("small", SCHEMA, parts).metadata_location)


@contextlib.contextmanager
def served(binary: Path, folder: Path, table: Made) -> Generator[str]:
    """The endpoint of a cache of the table."""
    caches = Caches(binary, folder / "logs")
    try:
        yield caches.of(table).endpoint
    finally:
        caches.close()


def steps_of(options: dict[str, Any], epoch: int, rank: int = 0, world: int = 1, rows: int = ROWS) -> list[list[int]]:
    """The row ids of each of a rank's steps."""
    own = {k: v for k, v in options.items() if k in ("seed", "shuffle", "clump", "tail")}
    oracle = Oracle(rows=rows, epoch=epoch, global_batch=options["global_batch_size"], rank=rank, world=world, **own)
    return [step.rows for step in oracle.share()]
