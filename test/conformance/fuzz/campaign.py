# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs the tables of many seeds in several processes."""

from __future__ import annotations

import multiprocessing
import shutil
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from . import run
from .cache import Wrong

#: Dimensions with a known defect, and what it is: no table has one of these. Empty when all are mended.
KNOWN: dict[str, str] = {}


def campaign(server: Path, seeds: Sequence[int], jobs: int) -> Iterator[tuple[int, str]]:
    """Yields each seed with the problem that its table had, "" if none. The files of failed tables are left."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-tables-"))
    one = partial(_one, server, folder)
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(one, seeds, chunksize=4)
    if not any(folder.iterdir()):
        folder.rmdir()


def _one(server: Path, parent: Path, seed: int) -> tuple[int, str]:
    folder = parent / f"table-{seed}"
    try:
        run.check(run.case(seed, frozenset(KNOWN)), server, folder)
    except Wrong as wrong:
        return seed, f"{wrong}\n  files: {folder}"
    except Exception:
        return seed, f"{traceback.format_exc()}\n  files: {folder}"
    shutil.rmtree(folder)
    return seed, ""
