# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A process of a JAX program that makes global arrays of its batches.

It goes through two epochs, from a state if it is given one, and writes the rows of every global array, their sums over
all processes, and its state after three steps, as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jax
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec

from kubeflow_datacache import DataCache, verify

EPOCHS, SAVED = 2, 3  # SAVED: steps before the state


def main() -> None:
    """Reads what to do from the command line."""
    endpoint, options, state, coordinator, process, processes, file = json.loads(sys.argv[1])
    jax.distributed.initialize(coordinator, num_processes=processes, process_id=process)
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    rows = NamedSharding(mesh, PartitionSpec("data"))
    total = jax.jit(lambda values: values.sum())

    loader = DataCache(endpoint, retry_seconds=600).loader(**options, columns=["id"])
    proof = verify(loader)
    if state:
        loader.load_state_dict(state["loader"])
        proof.load_state_dict(state["proof"])
    arrays: list[jax.Array] = []
    verified: list[Any] = []
    saved: dict[str, Any] = {}
    while loader.epoch < EPOCHS - 1 or loader.next_step < loader.steps:
        for batch in loader:
            arrays.append(jax.make_array_from_process_local_data(rows, batch.numpy()["id"]))
            verified.append(proof(batch))
            if len(arrays) == SAVED:
                saved = {"loader": loader.state_dict(), "proof": proof.state_dict()}

    evaluated = 0
    padded: dict[str, Any] = {**options, "shuffle": False, "tail": "pad"}
    held = DataCache(endpoint).loader(**padded, columns=["id"])
    for batch in held:
        ids = batch.numpy()["id"] * batch.valid
        evaluated += int(total(jax.make_array_from_process_local_data(rows, ids)))

    read = {
        "evaluated": evaluated,
        "steps": [multihost_utils.process_allgather(array, tiled=True).tolist() for array in arrays],
        "sums": [int(total(array)) for array in arrays],
        "verified": [epoch for epoch in verified if epoch is not None],
        "state": saved,
    }
    Path(file).write_text(json.dumps(read))
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
