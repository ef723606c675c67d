# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""State: exact with prefetch, for any world and worker count, in a fresh process, and refused where it does not fit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from order import Epoch as Oracle
from peer import Peer, Table

from kubeflow_datacache import DataCache, Loader, StateError, World

WORDS: dict[str, Any] = {"global_batch_size": 7, "seed": 5, "clump": 2, "tail": "pad"}

# What a fresh process does: it reads the rest of the epoch as another world with other workers.
REST = """
import json, sys
from kubeflow_datacache import DataCache, World
endpoint, words, states, world, workers = json.loads(sys.stdin.read())
out = []
with DataCache(endpoint) as cache:
    for state in states:
        steps = {}
        for rank in range(world):
            for worker in range(workers):
                loader = cache.loader(**words, world=World(rank, world), worker=worker, workers=workers)
                loader.load_state_dict(state)
                for batch in loader:
                    steps.setdefault(batch.step, []).extend(batch.numpy()["id"].tolist())
        out.append(sorted(steps.items()))
print(json.dumps(out))
"""


@pytest.mark.parametrize(("world", "workers"), [(1, 1), (3, 1), (2, 4), (9, 2)])
def test_every_state_of_an_epoch_goes_on_in_a_fresh_process(
    peer: Peer, cache: DataCache, world: int, workers: int
) -> None:
    loader = cache.loader(**WORDS, world=World(1, 2))
    loader.set_epoch(3)
    states = [loader.state_dict()]
    states.extend(loader.state_dict() for _ in loader)
    said = json.dumps([peer.endpoint, WORDS, states, world, workers])
    path = os.pathsep.join([str(Path(__file__).parents[1] / "src"), os.environ.get("PYTHONPATH", "")])
    run = subprocess.run(
        [sys.executable, "-c", REST],
        input=said,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert run.returncode == 0, run.stderr
    oracle = Oracle(rows=100, seed=5, epoch=3, clump=2, global_batch=7, tail="pad").share()
    assert len(states) == len(oracle) + 1
    for first, rest in enumerate(json.loads(run.stdout)):
        assert rest == [[step.number, step.rows] for step in oracle[first:]], f"from step {first}"


def test_states_of_all_ranks_are_the_same(cache: DataCache) -> None:
    loaders = [cache.loader(**WORDS, world=World(rank, 3)) for rank in range(3)]
    streams = [iter(loader) for loader in loaders]
    for _ in range(4):
        for stream in streams:
            next(stream)
    assert loaders[0].state_dict() == loaders[1].state_dict() == loaders[2].state_dict()
    assert loaders[0].state_dict()["next_step"] == 4
    for loader in loaders:
        loader.close()


OTHERS: list[tuple[str, Any]] = [
    ("version", 2),
    ("order_version", 2),
    ("table_uuid", "t-2"),
    ("snapshot", 6),
    ("fingerprint", "f-2"),
    ("rows", 99),
    ("seed", 6),
    ("shuffle", False),
    ("clump", 1),
    ("global_batch_size", 8),
    ("tail", "drop"),
]


@pytest.mark.parametrize(("field", "value"), OTHERS)
def test_a_state_of_another_order_is_refused_by_field(cache: DataCache, field: str, value: object) -> None:
    loader = cache.loader(**WORDS, world=World(0, 1))
    with pytest.raises(StateError, match=rf"{field} = {value!r}, but this loader has"):
        loader.load_state_dict({**loader.state_dict(), field: value})


def test_every_field_but_the_place_is_held(cache: DataCache) -> None:
    names = set(cache.loader(**WORDS, world=World(0, 1)).state_dict())
    assert names - {"epoch", "next_step"} == {name for name, _ in OTHERS}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"next_step": -1}, "next_step = -1"),
        ({"next_step": "3"}, "next_step = '3'"),
        ({"epoch": None}, "epoch = None"),
        ({"more": 1}, "unknown field more"),
    ],
)
def test_a_bad_state_is_refused_by_field(cache: DataCache, change: dict[str, Any], said: str) -> None:
    loader = cache.loader(**WORDS, world=World(0, 1))
    with pytest.raises(StateError, match=said):
        loader.load_state_dict({**loader.state_dict(), **change})


def test_a_field_that_is_missing_is_named(cache: DataCache) -> None:
    loader = cache.loader(**WORDS, world=World(0, 1))
    state = loader.state_dict()
    del state["seed"]
    with pytest.raises(StateError, match="seed is missing"):
        loader.load_state_dict(state)


def steps_of(loader: Loader) -> list[tuple[int, int]]:
    """(epoch, step) of what comes next."""
    return [(batch.epoch, batch.step) for batch in loader]


def test_where_an_iteration_begins(cache: DataCache) -> None:
    loader = cache.loader(global_batch_size=30, tail="keep", world=World(0, 1))
    whole = [0, 1, 2, 3]
    assert len(loader) == 4
    assert steps_of(loader) == [(0, s) for s in whole]
    end = loader.state_dict()
    assert steps_of(loader) == [(1, s) for s in whole], "without set_epoch the next epoch follows"
    loader.set_epoch(1)
    assert steps_of(loader) == [(1, s) for s in whole], "set_epoch goes to the begin, also of the same epoch"
    loader.load_state_dict({**end, "epoch": 2, "next_step": 3})
    loader.set_epoch(2)
    assert steps_of(loader) == [(2, 3)], "set_epoch of the saved epoch keeps the saved step"
    loader.load_state_dict(end)
    loader.set_epoch(0)
    assert steps_of(loader) == [], "the rest of an epoch that was saved at its end is empty"
    assert steps_of(loader) == [(1, s) for s in whole]
    loader.load_state_dict({**end, "next_step": 2})
    loader.set_epoch(4)
    assert steps_of(loader) == [(4, s) for s in whole], "another epoch begins at its begin"


def test_a_broken_off_iteration_goes_on_where_it_stood(cache: DataCache) -> None:
    loader = cache.loader(global_batch_size=30, tail="keep", world=World(0, 1))
    first = iter(loader)
    assert next(first).step == 0
    assert next(first).step == 1
    assert [batch.step for batch in loader] == [2, 3]
    assert list(first) == [], "the older iteration has ended"


@pytest.mark.parametrize(("rows", "tail", "steps"), [(0, "pad", 0), (0, "keep", 0), (1, "drop", 0), (1, "pad", 1)])
def test_tiny_tables(connect: Any, rows: int, tail: Any, steps: int) -> None:
    with Peer(Table(rows, [(0, rows)])) as peer:
        loader = connect(peer.endpoint).loader(global_batch_size=4, tail=tail, world=World(1, 2))
        batches = list(loader)
        assert len(loader) == len(batches) == steps
        assert [batch.valid.tolist() for batch in batches] == [[False, False]] * steps
