# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Shuffled epochs of tables with row-level deletes: the rows that are left, in the oracle's order, on every rank."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from client import Client
from lake import Made
from order import Epoch
from server import Cache, Caches, Mode
from test_epochs import stream

REPOSITORY = Path(__file__).parents[2]
WIDTH = 8 << 10

Connect = Callable[[Cache], Client]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Every table: where it is, and the ids of its rows in order, as its writer knows them."""
    command = ["go", "run", "./test/conformance/deletes", str(tmp_path_factory.mktemp("deletes"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr[-5000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("world", [1, 2, 3, 8])
@pytest.mark.parametrize("name", ["positions", "vectors", "equality", "all"])
def test_shuffled_epochs_of_what_is_left(
    name: str, world: int, written: dict[str, dict[str, Any]], mode: Mode, caches: Caches, connect: Connect
) -> None:
    ids = written[name]["ids"]
    texts = [f"text of row {i:06}" + chr(ord("a") + i % 26) * WIDTH for i in ids]
    whole = pa.table({"id": pa.array(ids, pa.int64()), "text": pa.array(texts, pa.string())})
    cache = caches.of(Made(name, written[name]["metadata"]), nodes=3, mode=mode)
    assert cache.status()["counted"] == (name in {"positions", "vectors"}), "planning counts what positions delete"
    client = connect(cache)
    for epoch in [
        Epoch(rows=len(ids), seed=7, epoch=2, global_batch=64, tail="keep"),
        Epoch(rows=len(ids), seed=8, epoch=0, global_batch=100, tail="pad", clump=16),
        Epoch(rows=len(ids), seed=9, epoch=5, global_batch=999, tail="drop", start_step=1),
    ]:
        for rank in range(world):
            own = epoch.of(rank, world)
            rows = own.share_rows()
            bounds, tables = stream(client, own, whole.column_names)
            assert (bounds[0][0], bounds[-1][1]) == (0, len(ids)), "the nodes hold other rows than the table"
            for (lo, hi), got in zip(bounds, tables, strict=True):
                want = whole.take(pa.array([row for row in rows if lo <= row < hi], pa.int64()))
                assert got.columns == want.columns, f"{own}: node of rows [{lo}, {hi})"
