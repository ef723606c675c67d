# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs random tables: SEED=random python -m fuzz --tables 1000."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from pathlib import Path

from seeds import SEED, seeds

from .campaign import KNOWN, campaign
from .run import case
from .shrink import describe, shrink


def main() -> int:
    """Runs the tables of some seeds; prints failures and the command that repeats each."""
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--server", type=Path, default=Path("bin/cacheserver"))
    parser.add_argument("--tables", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--most", type=int, default=20, help="stop after this many failures")
    parser.add_argument("--shrink", type=int, default=3, help="make the cases of so many failures smaller")
    options = parser.parse_args()
    server = options.server.resolve()
    print(f"{options.tables} tables from SEED={SEED} on", flush=True)
    begun, failures, done = time.monotonic(), 0, 0
    for seed, problem in campaign(server, seeds(options.tables), options.jobs):
        done += 1
        if done % 500 == 0:
            print(f"{done} tables after {time.monotonic() - begun:.0f} s", flush=True)
        if problem:
            failures += 1
            print(f"seed {seed}: {problem}\n  repeat: make fuzz-tables TABLES=1 SEED={seed}", flush=True)
            if failures <= options.shrink:
                smaller = shrink(case(seed, frozenset(KNOWN)), server)
                print("  " + describe(smaller).replace("\n", "\n  "), flush=True)
        if failures >= options.most:
            break
    took = time.monotonic() - begun
    print(f"{done} tables, {failures} failures, {took:.0f} s, {done / took:.1f} tables a second")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
