# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Benchmark worlds: how long a rank waits for its batch when ranks come and go, at a round trip of 1 ms.

torchft forms the quorum before; what is measured is Follow's part, which comes on top: from the call of next(), when
the world is known, to the batch in hand.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from lake import Lake

from benchlib.network import Network
from benchlib.process import Server

ROWS, LENGTH, BATCH = 64_000, 64, 1024  # rows, int32 tokens of a row, global batch
MOST, CHANGES, STEPS = 8, 300, 4  # ranks, changes of the world, steps between two
SECONDS = 0.02  # of a step, in which the next batches arrive
BAR = 0.050  # s, the 99th percentile


def write(folder: Path) -> str:
    """Writes a table of random tokens; returns its metadata file."""
    schema = pa.schema([("tokens", pa.list_(pa.int32()))])
    ends = np.arange(0, (ROWS + 1) * LENGTH, LENGTH, dtype=np.int32)
    tokens = np.random.default_rng(1).integers(0, 50_000, ROWS * LENGTH, np.int32)
    column = pa.ListArray.from_arrays(ends, tokens)
    return Lake(folder).create("tokens", schema, pa.table([column], schema=schema)).metadata_location


def survive(endpoint: str, seed: int) -> None:
    """One rank that stays while the others come and go; prints its waits in seconds, at changes and between them."""
    from kubeflow_datacache import DataCache
    from kubeflow_datacache.torch.torchft import Follow

    class Quorum:
        """What Follow asks of torchft's Manager."""

        step, rank, size = 0, 0, MOST

        def current_step(self) -> int:
            return self.step

        def participating_rank(self) -> int:
            return self.rank

        def num_participants(self) -> int:
            return self.size

    rng, quorum = random.Random(seed), Quorum()
    batches = Follow(DataCache(endpoint).loader(global_batch_size=BATCH, seed=7), quorum)
    waits = dict[str, list[float]](changed=[], same=[])
    for turn in range(CHANGES * STEPS):
        if changed := turn % STEPS == 0:
            quorum.size = rng.choice([size for size in range(1, MOST + 1) if size != quorum.size])
            quorum.rank = rng.randrange(quorum.size)
        began = time.perf_counter()
        batch: Any = batches.next()
        waits["changed" if changed else "same"].append(time.perf_counter() - began)
        assert batch.weight == quorum.size / BATCH
        time.sleep(SECONDS)
        quorum.step += 1
    print(json.dumps(waits))


def main() -> None:
    """Prints the waits; fails above the bar."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rank", metavar="ENDPOINT", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        survive(options.rank, options.seed)
        return
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        subprocess.run(["go", "build", "-o", f"{folder}/", "./test/bench/cmd/netdelay"], check=True)
        network = stack.enter_context(Network(folder))
        network.set(0.001)
        command = [*network.servers.before, str(options.server), "local", "--metadata", write(folder), "--nodes", "2"]
        command += ["--listen", f"{network.servers.host}:0", "--http", "127.0.0.1:0"]
        server = stack.enter_context(Server("cacheserver", command, folder / "server.log"))
        rank = [sys.executable, __file__, "--server", str(options.server), "--seed", str(options.seed)]
        run = [*network.clients.before, *rank, "--rank", server.uri]
        waits = json.loads(subprocess.run(run, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])
    print(f"round trip 1 ms, global batch {BATCH}, seed {options.seed}; milliseconds until a rank has its batch")
    print("world     batches   p50    p90    p99    most")
    for name, seconds in waits.items():
        cuts = (f"{1e3 * np.quantile(seconds, q):6.1f}" for q in (0.5, 0.9, 0.99, 1))
        print(f"{name:8} {len(seconds):8} {' '.join(cuts)}")
    if (pause := float(np.quantile(waits["changed"], 0.99))) > BAR:
        sys.exit(f"the 99th percentile is {1e3 * pause:.1f} ms, the bar {1e3 * BAR:.0f}")


if __name__ == "__main__":
    main()
