# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""One rank: reads a pickled (name of a loader, Run) from stdin; writes its batches and state, pickled, to a file."""

from __future__ import annotations

import itertools
import pickle
import sys
from pathlib import Path

import torch.distributed

from elastic.data import Run
from elastic.loaders import LOADERS


def main() -> None:
    """Reads as many batches as the run wants."""
    name, run = pickle.load(sys.stdin.buffer)
    assert isinstance(run, Run)
    torch.distributed.init_process_group("gloo")
    loader = LOADERS[name](run)
    batches, states = list[list[int]](), [b""]
    for batch in itertools.islice(loader.batches(), run.steps):
        batches.append(batch)
        states[0] = loader.state() if len(batches) == run.steps else b""
    Path(sys.argv[1]).write_bytes(pickle.dumps((batches, states[0])))
    torch.distributed.barrier()


if __name__ == "__main__":
    main()
