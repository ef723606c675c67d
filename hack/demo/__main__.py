# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""python -m demo: see __init__.py, or --help."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.flight as fl

from demo import table
from demo.checkpoint import Checkpoint
from demo.cluster import Cluster
from demo.progress import Progress

_WANTED = 0.9  # fraction of the last epoch's rows classified correctly; guessing gives about 0.25
_KILL_AT = 0.4  # fraction of an epoch


def main() -> int:
    """Runs the demo and returns the exit code: 0 only if all checks passed."""
    args = _arguments()
    begun = time.monotonic()
    data = table.make(args.cache, args.rows)
    print(
        f"servers: one head, {args.nodes} data nodes (logs: {args.cache / 'logs'})",
        flush=True,
    )
    source = ["--metadata", data.metadata]
    with Cluster(args.server, args.cache / "logs", source, nodes=args.nodes, mode="cluster") as servers:
        servers.wait_ready()
        counted = _count(servers.endpoint, shards=3)
        folder = args.cache / "checkpoint"
        killed_at = _train(args, servers.endpoint, folder)
        codes = servers.stop()
    epochs = [Checkpoint(folder).totals(epoch) for epoch in range(args.epochs)]
    last = epochs[-1].accuracy
    checks = {
        f"3 shards hold {data.rows:,} rows together": counted == data.rows,
        "every epoch saw each id exactly once, the one with the kill too": all(
            (e.seen == 1).all() and e.seen.size == data.rows for e in epochs
        ),
        f"accuracy is above {_WANTED:.0%} (it is {last:.2%})": last > _WANTED,
        f"servers stopped cleanly on SIGTERM {codes}": not any(codes.values()),
    }
    seconds = time.monotonic() - begun
    print(
        f"\nA table of {data.rows:,} rows ({data.files} files, {data.row_groups} row groups) was cached by {args.nodes}"
        f" data nodes.\n{args.ranks} ranks trained on it, shuffled, over Arrow Flight; they were killed in epoch"
        f" {killed_at[0] + 1} after step {killed_at[1]},\nand {args.ranks + 1} ranks went on from the checkpoint to the"
        f" end of epoch {args.epochs}. All in {seconds:.0f} s."
    )
    for what, held in checks.items():
        print(("  ok    " if held else "  FAIL  ") + what)
    return 0 if all(checks.values()) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="demo", description="Train a small model from a cached Iceberg table.")
    parser.add_argument("--server", type=Path, required=True, help="the cacheserver binary")
    parser.add_argument(
        "--cache",
        type=Path,
        required=True,
        help="where the table and the logs are kept",
    )
    parser.add_argument(
        "--rows",
        type=int,
        default=1_000_000,
        help="rows of the table (default: %(default)s; fewer than 100,000 teach the model too little)",
    )
    parser.add_argument("--nodes", type=int, default=2, help="data nodes (default: %(default)s)")
    parser.add_argument(
        "--ranks",
        type=int,
        default=2,
        help="training ranks before the kill, one more after it (default: %(default)s)",
    )
    parser.add_argument("--epochs", type=int, default=3, help="epochs (default: %(default)s)")
    parser.add_argument(
        "--global-batch",
        type=int,
        default=1024,
        help="rows of a step (default: %(default)s)",
    )
    args = parser.parse_args()
    args.server, args.cache = args.server.resolve(), args.cache.resolve()
    return args


def _count(endpoint: str, shards: int) -> int:
    """Counts the rows of the table by reading it in shards, as the simplest client does."""
    with fl.connect(endpoint) as head:
        total = head.get_flight_info(fl.FlightDescriptor.for_path("0", "1")).total_records
        progress, rows, size = Progress("shards", total), 0, 0
        for index in range(shards):
            info = head.get_flight_info(fl.FlightDescriptor.for_path(str(index), str(shards)))
            for part in info.endpoints:  # one per data node
                with fl.connect(part.locations[0]) as node:
                    for chunk in node.do_get(part.ticket):
                        rows, size = (
                            rows + chunk.data.num_rows,
                            size + chunk.data.nbytes,
                        )
                        progress.update(rows)
    progress.close(f"{rows:,} rows read in {shards} shards, {size / progress.seconds / 1e6:,.0f} MB/s")
    return rows


def _train(args: argparse.Namespace, endpoint: str, folder: Path) -> tuple[int, int]:
    """Trains, kills the training in the middle of the second epoch (or of the only one), and finishes it with one rank
    more."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    checkpoint, steps = Checkpoint(folder), -(-args.rows // args.global_batch)
    doomed = (min(1, args.epochs - 1), int(_KILL_AT * steps))
    with _ranks(args, endpoint, folder, args.ranks) as training:
        while checkpoint.position() < doomed and training.poll() is None:
            time.sleep(0.02)
        if training.poll() is not None:
            raise RuntimeError(f"the training ended with {training.returncode} before it could be killed")
        training.kill()
    position = checkpoint.position()
    print(
        f"\nkilled: {args.ranks} ranks, after the checkpoint of epoch {position[0] + 1}, step {position[1]} of {steps}",
        flush=True,
    )
    with _ranks(args, endpoint, folder, args.ranks + 1) as training:
        if training.wait():
            raise RuntimeError(f"the training ended with {training.returncode}")
    return position


def _ranks(args: argparse.Namespace, endpoint: str, folder: Path, ranks: int) -> subprocess.Popen[bytes]:
    flags = {
        "endpoint": endpoint,
        "checkpoint": folder,
        "ranks": ranks,
        "epochs": args.epochs,
        "global-batch": args.global_batch,
    }
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "demo.train",
            *(f"--{name}={value}" for name, value in flags.items()),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
