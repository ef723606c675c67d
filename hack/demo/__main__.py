# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""python -m demo: see __init__.py, or --help."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from demo import cluster, table
from demo.client import Cache
from demo.model import Model
from demo.order import Epoch
from demo.progress import Progress
from demo.train import Result, train

_WANTED = 0.9  # of the last epoch's rows classified right; guessing gives about 0.25


def main() -> int:
    """Runs the demo and returns the exit code: 0 only when every check held."""
    args = _arguments()
    begun = time.monotonic()
    data = table.make(args.cache, args.rows)
    print(f"servers: one head, {args.nodes} data nodes (logs: {args.cache / 'logs'})", flush=True)
    with cluster.start(args.server, data.metadata, args.nodes, args.cache / "logs") as servers:
        servers.wait_ready(limit=300)
        cache = Cache(servers.endpoint)
        counted = _count(cache, shards=3)
        results = _train(cache, args)
        cache.close()
        codes = servers.stop()
    checks = {
        f"3 shards hold {data.rows:,} rows together": counted == data.rows,
        "every epoch saw each id exactly once": all((r.seen == 1).all() and r.seen.size == data.rows for r in results),
        f"accuracy is above {_WANTED:.0%} (it is {results[-1].accuracy:.2%})": results[-1].accuracy > _WANTED,
        f"servers stopped cleanly on SIGTERM {codes}": not any(codes.values()),
    }
    seconds = time.monotonic() - begun
    print(
        f"\nA table of {data.rows:,} rows ({data.files} files, {data.row_groups} row groups) was cached by {args.nodes}"
        f" data nodes;\n{args.ranks} ranks trained on it for {args.epochs} shuffled epochs over Arrow Flight,"
        f" in {seconds:.0f} s."
    )
    for what, held in checks.items():
        print(("  ok    " if held else "  FAIL  ") + what)
    return 0 if all(checks.values()) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="demo", description="Train a small model from a cached Iceberg table.")
    parser.add_argument("--server", type=Path, required=True, help="the cacheserver binary")
    parser.add_argument("--cache", type=Path, required=True, help="where the table and the logs are kept")
    parser.add_argument(
        "--rows",
        type=int,
        default=1_000_000,
        help="rows of the table (default: %(default)s; fewer than 100,000 teach the model too little)",
    )
    parser.add_argument("--nodes", type=int, default=2, help="data nodes (default: %(default)s)")
    parser.add_argument("--ranks", type=int, default=2, help="training ranks (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=3, help="epochs (default: %(default)s)")
    parser.add_argument("--global-batch", type=int, default=1024, help="rows of a step (default: %(default)s)")
    args = parser.parse_args()
    args.server, args.cache = args.server.resolve(), args.cache.resolve()
    return args


def _count(cache: Cache, shards: int) -> int:
    """Reads the whole table as plain shards, the way the simplest client does, and counts rows."""
    progress, rows, size = Progress("shards", cache.rows()), 0, 0
    for index in range(shards):
        for batch in cache.shard(index, shards):
            rows, size = rows + batch.num_rows, size + batch.nbytes
            progress.update(rows)
    progress.close(f"{rows:,} rows read in {shards} shards, {size / progress.seconds / 1e6:,.0f} MB/s")
    return rows


def _train(cache: Cache, args: argparse.Namespace) -> list[Result]:
    model = Model(table.FEATURES, table.CLASSES)
    epochs = [
        Epoch(rows=cache.rows(), seed=7, number=number, global_batch=args.global_batch) for number in range(args.epochs)
    ]
    return [train(cache, model, epoch, args.ranks) for epoch in epochs]


if __name__ == "__main__":
    sys.exit(main())
