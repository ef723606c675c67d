# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""JAX: global arrays over processes and devices, and the arrays of one process."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax_process import EPOCHS, SAVED
from kit.deadline import limit
from kit.ports import free_port
from small import ROWS, small_cache, steps_of
from wide import tokens_of

from kubeflow_datacache import DataCache, World

OPTIONS: dict[str, Any] = {"global_batch_size": 24, "seed": 9, "tail": "drop"}
DEVICES = 2  # of each process


@pytest.fixture(scope="module")
def endpoint(server: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cache of the small table."""
    with small_cache(server, tmp_path_factory.mktemp("small")) as one:
        yield one


def run(endpoint: str, folder: Path, processes: int, state: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """What jax_process.py wrote in each of the processes."""
    paths = [str(Path(__file__).parents[2] / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={DEVICES}",
    }
    coordinator = f"127.0.0.1:{free_port()}"
    script = Path(__file__).parent / "jax_process.py"
    files = [folder / f"{process}-of-{processes}.json" for process in range(processes)]
    started = [
        subprocess.Popen(
            [
                sys.executable,
                script,
                json.dumps([endpoint, OPTIONS, state, coordinator, process, processes, str(file)]),
            ],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for process, file in enumerate(files)
    ]
    errors = [one.communicate(timeout=3 * limit())[1] for one in started]
    assert [one.returncode for one in started] == [0] * processes, "\n".join(errors)
    return [json.loads(file.read_text()) for file in files]


def test_global_arrays_are_the_same_for_every_number_of_processes(endpoint: str, tmp_path: Path) -> None:
    two = run(endpoint, tmp_path, 2)
    want = list(itertools.chain(*(steps_of(OPTIONS, epoch) for epoch in range(EPOCHS))))
    for read in two:
        assert read["steps"] == want
        assert read["evaluated"] == sum(range(ROWS)), "each row once, without padding"
        assert read["sums"] == [sum(step) for step in want], "summed over all processes"
    (rest,) = run(endpoint, tmp_path, 1, two[1]["state"])
    assert rest["steps"] == want[SAVED:]
    assert two[0]["verified"] == two[1]["verified"] == rest["verified"]
    rows = sum(map(len, steps_of(OPTIONS, 0)))
    assert rest["verified"] == [[epoch, rows, 0] for epoch in range(EPOCHS)], "the state carries the first steps"


def test_arrays_outlive_their_batches(endpoint: str) -> None:
    with DataCache(endpoint) as cache:
        loader = cache.loader(**OPTIONS, columns=["tokens"], world=World(0, 1))
        arrays = [jnp.asarray(batch.numpy()["tokens"]) for batch in loader]
    assert all(isinstance(array, jax.Array) for array in arrays)
    for array, ids in zip(arrays, steps_of(OPTIONS, 0), strict=True):
        np.testing.assert_array_equal(array, tokens_of(np.array(ids)))
