# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The real servers of a mixture's parts are killed in mid-epoch; every batch is checked against the oracle."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chance import Chance
from cluster import Cluster
from kit.deadline import limit
from lake import Lake
from order import Mixture as Oracle
from wide import rows_of, wide_table

from kubeflow_datacache import DataCache, MixLoader, World, mix

ROWS = {"web": 9_973, "code": 3_001}
LOW = 500  # the filter of code leaves the rows from here on


@pytest.mark.night
@pytest.mark.parametrize("numbered", [False, True])
def test_no_row_of_a_mixture_is_lost_when_servers_are_lost(
    server: Path, tmp_path: Path, chance: Chance, monkeypatch: pytest.MonkeyPatch, numbered: bool
) -> None:
    monkeypatch.setattr("kubeflow_datacache.loader.takes", lambda *_: numbered)
    lakes = {name: tmp_path / name for name in ROWS}
    for folder in lakes.values():
        folder.mkdir()
    tables = {name: wide_table(Lake(lakes[name]), rows) for name, rows in ROWS.items()}
    with (
        Cluster(server, tables["web"], lakes["web"]) as web,
        Cluster(server, tables["code"], lakes["code"]) as code,
        DataCache(web.endpoint, retry_seconds=limit()) as first,
        DataCache(code.endpoint, retry_seconds=limit()) as second,
    ):
        for cluster in (web, code):
            cluster.wait_ready()
        parts = {"web": (first, 0.7), "code": (second.select(filter=f"id >= {LOW}"), 0.3)}
        reconnects = 0
        for _, rng in chance.schedules(1):
            reconnects += _train(parts, {"web": web, "code": code}, rng)
    chance.note(f"kills under a mixture, no mismatch: {reconnects} reconnects")


def _train(parts: dict[str, Any], clusters: dict[str, Cluster], rng: random.Random) -> int:
    """Three attempts in different worlds, each from the last one's state; servers of both parts are killed in each."""
    options: dict[str, Any] = {
        "global_batch_size": 500,
        "exact": rng.choice(["step", "epoch"]),
        "until": 12_000,
        "seed": rng.getrandbits(64),
        "clump": rng.choice([1, 8]),
        "prefetch_bytes": 1 << 16,
    }
    state, done, reconnects = None, 0, 0
    for end in (14, 20, 24):
        # In the first attempt all data nodes are killed while they owe far more than buffers hold.
        world = rng.randint(1, 3) if done else 1
        loaders = [mix(parts, **options, world=World(rank, world)) for rank in range(world)]
        if state is not None:
            for loader in loaders:
                loader.load_state_dict(json.loads(state))
        streams, kill_at = [iter(loader) for loader in loaders], rng.randint(done + 1, end - 1) if done else 1
        for step in range(done, end):
            if step == kill_at:
                for cluster in clusters.values():
                    some = [["node-0", "node-1"], ["node-1"], cluster.names] if done else [["node-0", "node-1"]]
                    cluster.interrupt(rng.choice(some), rng.random() / 3)
            batches = [next(stream) for stream in streams]
            got = np.concatenate([batch.numpy()["id"] for batch in batches])
            assert got.tolist() == _ids(loaders[0], step), (options, step)
            for batch in batches:
                assert batch.arrow().equals(rows_of(batch.numpy()["id"]))
            state = json.dumps(loaders[-1].state_dict())
        if end == loaders[0].steps:
            assert all(next(stream, None) is None for stream in streams), "a rank has more steps"
        done = end
        for loader in loaders:
            reconnects += loader.stats().reconnects
            loader.close()
        assert reconnects > 0, "the first kill has hit no stream"
    return reconnects


def _ids(loader: MixLoader, step: int) -> list[int]:
    """The ids of a step's rows, by the oracle."""
    state = loader.state_dict()
    oracle = Oracle(
        parts=tuple((part["rows"], tuple(part["weights"])) for part in state["parts"]),
        length=state["rows"],
        seed=state["seed"],
        clump=state["clump"],
        global_batch=state["global_batch_size"],
    )
    size = oracle.global_batch
    draws = [oracle.draw(position) for position in range(step * size, (step + 1) * size)]
    return [row + (LOW if loader.parts[part] == "code" else 0) for part, row in draws]
