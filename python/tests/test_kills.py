# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The ledger with real servers that are killed in mid-epoch."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cluster import Cluster
from wide import ROWS, rows_of, tokens_of

from kubeflow_datacache import DataCache, World
from kubeflow_datacache.order import Epoch, Share

Connect = Callable[..., DataCache]
WHOLE = Share()


def test_no_row_is_lost_when_servers_are_killed(
    cluster: Cluster, connect: Connect, rng: random.Random, thorough: int
) -> None:
    cache = connect(cluster.endpoint, retry_seconds=60)
    reconnects = 0
    for _ in range(5 * thorough):
        reconnects += _train(cluster, cache, rng)
    assert reconnects > 0, "no kill has hit a stream"


def _train(cluster: Cluster, cache: DataCache, rng: random.Random) -> int:
    """One epoch in three attempts of different worlds, each with a server killed; returns how often streams broke."""
    words: dict[str, Any] = {
        "global_batch_size": rng.choice([97, 128, 1500]),
        "seed": rng.getrandbits(40),
        "tail": rng.choice(["drop", "keep", "pad"]),
        "clump": rng.choice([1, 1, 3]),
        "shuffle": rng.random() < 0.8,
    }
    order = Epoch(
        rows=ROWS,
        global_batch=words["global_batch_size"],
        number=1,
        **{k: words[k] for k in ("seed", "tail", "clump", "shuffle")},
    )
    ends = sorted(rng.sample(range(1, order.steps), 2))
    state, reconnects, done = "", 0, 0
    for end in [*ends, order.steps]:
        world = rng.randint(1, 3)
        loaders = [cache.loader(**words, prefetch_bytes=1 << 16, world=World(r, world)) for r in range(world)]
        for loader in loaders:
            if state:
                loader.load_state_dict(json.loads(state))
            loader.set_epoch(1)
        streams = [iter(loader) for loader in loaders]
        at = rng.randint(done, end - 1)
        for step in range(done, end):
            if step == at:
                _blow(cluster, rng)
            batches = [next(stream) for stream in streams]
            ids = np.concatenate([batch.numpy()["id"] for batch in batches])
            assert np.array_equal(ids, order.rows_of(range(step, step + 1), WHOLE)), (words, step)
            for batch in batches:
                columns = batch.numpy()
                assert np.array_equal(columns["tokens"], tokens_of(columns["id"]))
                assert batch.arrow().column("text") == rows_of(columns["id"]).column("text")
            state = json.dumps(loaders[step % world].state_dict())
        done = end
        reconnects += sum(loader.stats().reconnects for loader in loaders)
        for loader in loaders:
            loader.close()
    return reconnects


def _blow(cluster: Cluster, rng: random.Random) -> None:
    names = rng.choice([["head"], ["node-0"], ["node-1"], ["node-0", "node-1"], cluster.names])
    cluster.blow(names, rng.uniform(0, 0.3))


@pytest.mark.parametrize("columns", [None, ["text", "id"]])
def test_columns_and_types_over_the_wire(cluster: Cluster, connect: Connect, columns: list[str] | None) -> None:
    cache = connect(cluster.endpoint)
    loader = cache.loader(global_batch_size=1000, shuffle=False, columns=columns, world=World(0, 1))
    batch = next(iter(loader))
    want = rows_of(np.arange(1000))
    assert batch.arrow().equals(want.select(columns) if columns else want)
    loader.close()
