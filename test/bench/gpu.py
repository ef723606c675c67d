# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Benchmark gpu: the time a training step waits for its batch on the GPU, for several ways of copying."""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from lake import Lake
from server import Caches, Made

from kubeflow_datacache import DataCache, World
from kubeflow_datacache.torch import StreamingDataLoader, StreamingDataset

ROWS, LENGTH, FILES = 120_000, 512, 6  # 246 MB of tokens
BATCH, WIDTH, ROUNDS = 1024, 4096, 3


def table(folder: Path) -> Made:
    """Writes a table of random tokens."""
    numbers, size = np.random.default_rng(1), ROWS // FILES
    schema = pa.schema([("tokens", pa.list_(pa.int32()))])
    ends = np.arange(0, (size + 1) * LENGTH, LENGTH, dtype=np.int32)
    parts = [pa.ListArray.from_arrays(ends, numbers.integers(0, 50_000, size * LENGTH, np.int32)) for _ in range(FILES)]
    made = Lake(folder).create("tokens", schema, [pa.table([part], schema=schema) for part in parts])
    return Made("tokens", made.metadata_location)


def ways(dataset: StreamingDataset) -> dict[str, Callable[[], Any]]:
    """Loaders that copy batches to the GPU, by description."""
    common: dict[str, Any] = {"num_workers": 1, "persistent_workers": True}
    return {
        "batch.to(device)": lambda: (
            StreamingDataLoader(dataset, **common),
            lambda batch: batch.to("cuda"),
        ),
        "pin_memory, batch.to(device, non_blocking=True)": lambda: (
            StreamingDataLoader(dataset, pin_memory=True, **common),
            lambda batch: batch.to("cuda", non_blocking=True),
        ),
        "pin_memory, device=": lambda: (
            StreamingDataLoader(dataset, pin_memory=True, device="cuda", **common),
            lambda batch: batch,
        ),
    }


def epoch(loader: StreamingDataLoader, bring: Callable[[Any], Any], weights: torch.Tensor) -> tuple[float, float]:
    """Reads an epoch while GPU kernels run. Returns milliseconds per step, and GB/s of tensors."""
    product = torch.empty_like(weights)
    size, steps, begun = 0, 0, time.perf_counter()
    for batch in loader:
        there = bring(batch)
        tokens = there["tokens"]
        for _ in range(4):
            torch.mm(weights, weights, out=product)
        tokens.float().mean()
        size, steps = size + tokens.nbytes, steps + 1
    torch.cuda.synchronize()
    spent = time.perf_counter() - begun
    return 1e3 * spent / steps, size / spent / 1e9


def main() -> int:
    """Measures each way, or reports that there is no GPU."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", type=Path, default=Path("bin/cacheserver"))
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("==> bench gpu: THERE IS NO GPU HERE, nothing was measured (torch sees no CUDA device)", file=sys.stderr)
        return 1
    print(f"{torch.cuda.get_device_name()}, {BATCH} rows a step, medians of {ROUNDS} epochs of {ROWS:,} rows")
    weights = torch.randn(WIDTH, WIDTH, device="cuda")
    with tempfile.TemporaryDirectory() as folder:
        caches = Caches(options.server.resolve(), Path(folder) / "logs")
        try:
            served = caches.of(table(Path(folder)))
            with DataCache(served.endpoint) as cache:
                dataset = StreamingDataset(cache, global_batch_size=BATCH, columns=["tokens"], world=World(0, 1))
                for name, make in ways(dataset).items():
                    loader, bring = make()
                    epoch(loader, bring, weights)  # warm-up: starts workers and pins memory
                    rounds = [epoch(loader, bring, weights) for _ in range(ROUNDS)]
                    step, rate = (statistics.median(values) for values in zip(*rounds, strict=True))
                    print(f"{name:<48} {step:8.2f} ms/step {rate:8.2f} GB/s", flush=True)
        finally:
            caches.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
