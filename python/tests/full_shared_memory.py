# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A training whose /dev/shm is too small for the batches of its worker. Prints the error that it gets.

Arguments: the cache's endpoint; "rows" for plain batches, or "transform" for tensors that a transform made.
"""

from __future__ import annotations

import sys

import pyarrow as pa
import torch

from kubeflow_datacache import DataCache, DataCacheError
from kubeflow_datacache.torch import StreamingDataLoader, StreamingDataset


def grow(batch: pa.RecordBatch) -> dict[str, torch.Tensor]:
    """Makes 1 MiB of each row."""
    return {"grown": torch.zeros(batch.num_rows, 1 << 18)}


def main() -> None:
    """Reads until the error."""
    endpoint, kind = sys.argv[1:]
    transform = grow if kind == "transform" else None
    dataset = StreamingDataset(DataCache(endpoint), global_batch_size=7, seed=1, transform=transform)
    try:
        for _ in StreamingDataLoader(dataset, num_workers=1):
            pass
    except DataCacheError as error:
        print(error)


if __name__ == "__main__":
    main()
