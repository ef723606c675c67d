# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""python -m demo.train: data-parallel training through the loader; it may be killed and restarted at any time.

Every rank has its own loader, which streams that rank's rows. All ranks run in lockstep in this process, and their
gradients are added as a collective operation would do. After a restart, training resumes from the last checkpoint, with
any world size.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from demo.checkpoint import Checkpoint, EpochTotals
from demo.model import Model
from demo.progress import Progress
from demo.table import CLASSES, FEATURES
from kubeflow_datacache import DataCache, Loader, World

_COLUMNS = ["id", "features", "label"]


def main() -> int:
    """Train until the end of the last epoch."""
    args = _arguments()
    with DataCache(args.endpoint) as cache:
        loaders = [_loader(cache, args, World(rank=rank, size=args.ranks)) for rank in range(args.ranks)]
        model, rows = Model(FEATURES, CLASSES), cache.dataset.rows
        checkpoint = Checkpoint(args.checkpoint)
        totals = checkpoint.load(model, loaders) or EpochTotals.new(rows)
        while loaders[0].epoch < args.epochs:
            if loaders[0].next_step < loaders[0].steps:  # else the checkpoint was saved at the end of an epoch
                _epoch(model, loaders, totals, checkpoint, every=args.checkpoint_steps)
            totals = EpochTotals.new(rows)
            for loader in loaders:
                loader.set_epoch(loader.epoch + 1)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="demo.train",
        description="Train from a cache, from the last checkpoint on.",
    )
    parser.add_argument("--endpoint", required=True, help="grpc://host:port of the cache's head")
    parser.add_argument("--checkpoint", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--global-batch", type=int, required=True, help="rows of a step, over all ranks")
    parser.add_argument(
        "--checkpoint-steps",
        type=int,
        default=50,
        help="steps between two checkpoints (default: %(default)s)",
    )
    return parser.parse_args()


def _loader(cache: DataCache, args: argparse.Namespace, world: World) -> Loader:
    return cache.loader(
        global_batch_size=args.global_batch,
        seed=7,
        tail="keep",
        columns=_COLUMNS,
        world=world,
    )


def _epoch(
    model: Model,
    loaders: list[Loader],
    totals: EpochTotals,
    checkpoint: Checkpoint,
    every: int,
) -> None:
    """Train from the loaders' position to the end of the epoch, with periodic checkpoints and one at the end."""
    first = loaders[0]
    epoch, steps, rows = first.epoch, first.steps, first.dataset.rows
    progress, begun = (
        Progress(f"epoch {epoch + 1}, {len(loaders)} ranks", rows),
        totals.rows,
    )
    rate = 0.01 * 0.5**epoch
    if first.next_step:
        print(
            f"epoch {epoch + 1}: goes on at step {first.next_step} of {steps}, now with {len(loaders)} ranks",
            flush=True,
        )
    for shares in zip(*loaders, strict=True):
        total = [np.zeros_like(w) for w in model.weights]
        for share in shares:
            columns = share.numpy()  # lists of equal length become an array of shape (rows, FEATURES)
            loss, right, gradient = model.gradient(columns["features"], columns["label"])
            total = [a + b for a, b in zip(total, gradient, strict=True)]
            totals.add(columns["id"], loss, right)
        model.update(total, sum(share.num_rows for share in shares), rate)
        if first.next_step % every == 0 or first.next_step == steps:
            checkpoint.save(model, first, totals)
        speed = f"{(totals.rows - begun) / max(progress.seconds, 1e-9) / 1e3:,.0f}k rows/s"
        progress.update(totals.rows, f"{totals}  {speed}")
    waited = {stage: seconds for stage, seconds in first.stats().seconds.items() if seconds >= 0.05}
    times = ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in waited.items())
    rows_now = totals.rows - begun
    speed = f"{rows_now:,} rows, {rows_now / progress.seconds / 1e3:,.0f}k rows/s"
    progress.close(f"{totals}  {speed}; rank 0's time: {times}")


if __name__ == "__main__":
    sys.exit(main())
