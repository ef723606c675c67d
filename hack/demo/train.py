# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Data-parallel training over the cache: each rank streams its own rows, gradients are averaged step by step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from demo.client import Cache
from demo.model import Floats, Ints, Model
from demo.order import Epoch
from demo.progress import Progress
from demo.table import FEATURES

_COLUMNS = ["id", "features", "label"]


@dataclass(frozen=True)
class Result:
    """What one epoch brought."""

    loss: float
    accuracy: float
    seconds: float
    bytes: int
    seen: Ints  # how often each id came, by all ranks together


def train(cache: Cache, model: Model, epoch: Epoch, world: int) -> Result:
    """One epoch with world ranks in lockstep, as a collective would run them."""
    progress = Progress(f"epoch {epoch.number + 1}", epoch.rows)
    ranks = [cache.epoch(epoch, rank, world, _COLUMNS) for rank in range(world)]
    seen = np.zeros(epoch.rows, np.int64)
    loss, right, done, size = 0.0, 0, 0, 0
    rate = 0.01 * 0.5**epoch.number
    for shares in zip(*ranks, strict=True):
        total = [np.zeros_like(w) for w in model.weights]
        rows = sum(share.rows.num_rows for share in shares)
        for share in shares:
            ids, x, y = _arrays(share.rows)
            part, hits, gradient = model.gradient(x, y)
            loss, right = loss + part, right + hits
            total = [a + b for a, b in zip(total, gradient, strict=True)]
            np.add.at(seen, ids, 1)
            size += share.rows.nbytes
        model.update(total, rows, rate)
        done += rows
        spent = max(progress.seconds, 1e-9)
        speed = f"{done / spent / 1e3:,.0f}k rows/s, {size / spent / 1e6:,.0f} MB/s"
        progress.update(done, f"loss {loss / done:.4f}  accuracy {right / done:.2%}  {speed}")
    result = Result(loss / done, right / done, progress.seconds, size, seen)
    speed = f"{done / result.seconds / 1e3:,.0f}k rows/s, {size / result.seconds / 1e6:,.0f} MB/s"
    progress.close(f"loss {result.loss:.4f}  accuracy {result.accuracy:.2%}  {done:,} rows, {speed}")
    return result


def _arrays(rows: pa.RecordBatch) -> tuple[Ints, Floats, Ints]:
    """The columns of a step as numpy, without copying."""
    x = rows.column("features").flatten().to_numpy(zero_copy_only=True).reshape(-1, FEATURES)
    return rows.column("id").to_numpy(), x, rows.column("label").to_numpy()
