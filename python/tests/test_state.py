# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""States are exact with prefetching, valid for any world, number of workers and process, and rejected if they do not
fit."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from kit.deadline import eventually, limit
from order import Epoch as Oracle
from peer import Peer, Table

from kubeflow_datacache import DataCache, Loader, StateError, World

OPTIONS: dict[str, Any] = {"global_batch_size": 7, "seed": 5, "clump": 2, "tail": "pad"}

# Runs in a new process: reads the rest of the epoch with another world and other workers.
REST = """
import json, sys
from kubeflow_datacache import DataCache, World
endpoint, options, states, world, workers = json.loads(sys.stdin.read())
out = []
with DataCache(endpoint) as cache:
    for state in states:
        steps = {}
        for rank in range(world):
            for worker in range(workers):
                loader = cache.loader(**options, world=World(rank, world), worker=worker, workers=workers)
                loader.load_state_dict(state)
                for batch in loader:
                    steps.setdefault(batch.step, []).extend(batch.numpy()["id"].tolist())
        out.append(sorted(steps.items()))
print(json.dumps(out))
"""


@pytest.mark.parametrize(("world", "workers"), [(1, 1), (3, 1), (2, 4), pytest.param(9, 2, marks=pytest.mark.night)])
def test_every_state_of_an_epoch_goes_on_in_a_fresh_process(
    peer: Peer, cache: DataCache, world: int, workers: int
) -> None:
    loader = cache.loader(**OPTIONS, world=World(1, 2))
    loader.set_epoch(3)
    states = [loader.state_dict()]
    states.extend(loader.state_dict() for _ in loader)
    job = json.dumps([peer.endpoint, OPTIONS, states, world, workers])
    path = os.pathsep.join([str(Path(__file__).parents[1] / "src"), os.environ.get("PYTHONPATH", "")])
    run = subprocess.run(
        [sys.executable, "-c", REST],
        input=job,
        capture_output=True,
        text=True,
        check=False,
        timeout=limit(),
        env={**os.environ, "PYTHONPATH": path},
    )
    assert run.returncode == 0, run.stderr
    oracle = Oracle(rows=100, seed=5, epoch=3, clump=2, global_batch=7, tail="pad").share()
    assert len(states) == len(oracle) + 1
    following = Oracle(rows=100, seed=5, epoch=4, clump=2, global_batch=7, tail="pad").share()
    for first, rest in enumerate(json.loads(run.stdout)):
        want = oracle[first:] or following  # a state after the last step resumes with the next epoch
        assert rest == [[step.number, step.rows] for step in want], f"from step {first}"


def test_states_of_all_ranks_are_the_same(cache: DataCache) -> None:
    loaders = [cache.loader(**OPTIONS, world=World(rank, 3)) for rank in range(3)]
    streams = [iter(loader) for loader in loaders]
    for _ in range(4):
        for stream in streams:
            next(stream)
    assert loaders[0].state_dict() == loaders[1].state_dict() == loaders[2].state_dict()
    assert loaders[0].state_dict()["next_step"] == 4
    for loader in loaders:
        loader.close()


def test_a_state_does_not_count_what_is_read_ahead(cache: DataCache) -> None:
    loader = cache.loader(**OPTIONS, world=World(0, 1))
    oracle = Oracle(rows=100, seed=5, clump=2, global_batch=7, tail="pad").share()
    batches = iter(loader)
    for step in oracle[:6]:
        assert next(batches).step == step.number
        if step.number == 0:
            wait_for_rows(loader)
        state = json.loads(json.dumps(loader.state_dict()))
        assert state == loader.state_dict()
        other = cache.loader(**OPTIONS, world=World(0, 1))
        other.load_state_dict(state)
        assert next(iter(other)).numpy()["id"].tolist() == oracle[step.number + 1].rows
        other.close()
    loader.close()


@pytest.mark.parametrize("state", [{"epoch": 3, "next_step": 0}, {"epoch": 2, "next_step": 15}])
def test_another_window_where_an_epoch_begins(cache: DataCache, state: dict[str, int]) -> None:
    saved = {**cache.loader(**OPTIONS, world=World(0, 1)).state_dict(), **state}
    loader = cache.loader(**OPTIONS, window=6, world=World(0, 1))
    loader.load_state_dict(saved, allow=["window"])
    oracle = Oracle(rows=100, seed=5, epoch=3, clump=2, window=6, global_batch=7, tail="pad").share()
    assert [batch.numpy()["id"].tolist() for batch in loader] == [step.rows for step in oracle]
    saved |= {"epoch": 3, "next_step": 1}
    with pytest.raises(StateError, match="window = 0, but this loader has 6, and the state is within an epoch"):
        loader.load_state_dict(saved, allow=["window"])
    with pytest.raises(ValueError, match=r"allow = \['clump'\]: want "):
        loader.load_state_dict(saved, allow=["clump"])


def wait_for_rows(loader: Loader) -> None:
    """Waits until rows were read ahead."""
    eventually("rows that are read ahead", lambda: loader.stats().prefetch_queue_depth.rows)


# (field, another value, what the error says, what it advises).
SERVE, MAKE = "Start the cache with that table, snapshot and filter", "make the loader with"
OTHERS: list[tuple[str, Any, Any, str]] = [
    ("version", 2, 1, "use the release of kubeflow-datacache that saved it"),
    ("order_version", 2, 1, "make the loader with order=2 to go on where it was saved"),
    ("table_uuid", "t-2", "t-1", SERVE),
    ("snapshot", 6, 5, SERVE),
    ("filter", "id > 3", "", SERVE),
    ("row_filter", "id > 3", "", "Select those rows, with filter="),
    ("split", {"of": 2, "start": 0, "stop": 1, "seed": 0, "shuffle": True}, None, "Select those rows, with split="),
    ("rows", 99, 100, SERVE),
    ("fingerprint", "f-2", "f-1", SERVE),
    ("seed", 6, 5, f"{MAKE} seed=6"),
    ("shuffle", False, True, f"{MAKE} shuffle=False"),
    ("clump", 1, 2, f"{MAKE} clump=1"),
    ("window", 3, 0, f'{MAKE} window=3 to go on where it was saved, or load a state with allow=["window"]'),
    ("tail", "drop", "pad", f"{MAKE} tail='drop'"),
]


@pytest.mark.parametrize(("field", "saved", "here", "fix"), OTHERS)
def test_a_state_of_another_order_is_refused_by_field(
    cache: DataCache, field: str, saved: object, here: object, fix: str
) -> None:
    loader = cache.loader(**OPTIONS, world=World(0, 1))
    with pytest.raises(StateError) as error:
        loader.load_state_dict({**loader.state_dict(), field: saved})
    assert str(error.value).startswith(f"state: {field} = {saved!r}, but this loader has {here!r}: ")
    assert fix in str(error.value)


def test_every_field_but_the_position_must_match(cache: DataCache) -> None:
    names = set(cache.loader(**OPTIONS, world=World(0, 1)).state_dict())
    assert names - {"epoch", "next_step", "global_batch_size"} == {name for name, *_ in OTHERS}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"table_uuid": "t-2", "snapshot": 9}, "table_uuid = 't-2', but this loader has 't-1'"),
        ({"snapshot": 6}, "snapshot = 6, but this loader has 5"),
        ({"filter": "id > 3"}, "filter = 'id > 3', but this loader has ''"),
        ({"rows": 90, "nodes": [(0, 90)]}, "rows = 90, but this loader has 100"),
    ],
)
def test_a_state_of_other_rows_is_refused_by_what_differs_first(
    cache: DataCache, connect: Any, change: dict[str, Any], field: str
) -> None:
    with Peer(replace(Table(100, [(0, 100)], fingerprint="f-2"), **change)) as other:
        state = connect(other.endpoint).loader(**OPTIONS, world=World(0, 1)).state_dict()
    with pytest.raises(StateError, match=re.escape(field)):
        cache.loader(**OPTIONS, world=World(0, 1)).load_state_dict(state)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"next_step": -1}, "next_step = -1"),
        ({"next_step": "3"}, "next_step = '3'"),
        ({"epoch": None}, "epoch = None"),
        ({"more": 1}, "unknown field more"),
    ],
)
def test_a_bad_state_is_refused_by_field(cache: DataCache, change: dict[str, Any], message: str) -> None:
    loader = cache.loader(**OPTIONS, world=World(0, 1))
    with pytest.raises(StateError, match=message):
        loader.load_state_dict({**loader.state_dict(), **change})


def test_a_field_that_is_missing_is_named(cache: DataCache) -> None:
    loader = cache.loader(**OPTIONS, world=World(0, 1))
    state = loader.state_dict()
    del state["seed"]
    with pytest.raises(StateError, match="seed is missing"):
        loader.load_state_dict(state)


def test_a_state_of_a_cache_with_another_filter(server: Path, table: str, tmp_path: Path, connect: Any) -> None:
    options: dict[str, Any] = {"global_batch_size": 7, "world": World(0, 1)}
    states: list[dict[str, Any]] = []
    for condition in ("id < 5000", "id >= 55000"):
        with Cluster(server, table, tmp_path, flags=["--filter", condition]) as cluster:
            cluster.wait_ready()
            loader: Loader = connect(cluster.endpoint).loader(**options)
            states.append(loader.state_dict())
            if len(states) == 2:
                with pytest.raises(StateError, match="filter = 'id < 5000', but this loader has 'id >= 55000'"):
                    loader.load_state_dict(states[0])
    assert [state["rows"] for state in states] == [5000, 5000]


def steps_of(loader: Loader) -> list[tuple[int, int]]:
    """(epoch, step) of all batches of one iteration."""
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
    assert steps_of(loader) == [(1, s) for s in whole], "a state saved at an epoch's end goes on with the next epoch"
    loader.load_state_dict(end)
    with pytest.warns(UserWarning, match=r"set_epoch\(0\): .* after the last step of epoch 0, so nothing is left"):
        loader.set_epoch(0)
    assert steps_of(loader) == [], "whoever counts epochs gets each step once: nothing is left of this one"
    assert steps_of(loader) == [(1, s) for s in whole]
    with pytest.raises(StateError, match="next_step = 5: an epoch has 4 steps, want at most 4"):
        loader.load_state_dict({**end, "next_step": 5})
    loader.load_state_dict({**end, "next_step": 2})
    loader.set_epoch(4)
    assert steps_of(loader) == [(4, s) for s in whole], "another epoch begins at its begin"


def test_a_broken_off_iteration_goes_on_where_it_stood(cache: DataCache) -> None:
    loader = cache.loader(global_batch_size=30, tail="keep", world=World(0, 1))
    first = iter(loader)
    assert next(first).step == 0
    assert next(first).step == 1
    assert [batch.step for batch in loader] == [2, 3]
    with pytest.raises(RuntimeError, match="this iteration was ended, by a newer one"):
        next(first)


@pytest.mark.parametrize("tail", ["drop", "keep", "pad"])
def test_an_epoch_ends_for_those_who_count_its_steps(cache: DataCache, tail: Any) -> None:
    loader = cache.loader(global_batch_size=30, tail=tail, world=World(0, 1))
    epochs = [[(b.epoch, b.step) for _, b in zip(range(len(loader)), loader, strict=False)] for _ in range(3)]
    assert epochs == [[(e, s) for s in range(len(loader))] for e in range(3)]


def test_an_epoch_ends_for_a_worker_with_its_own_last_step(cache: DataCache) -> None:
    loader = cache.loader(global_batch_size=30, tail="keep", world=World(0, 1), worker=0, workers=3)
    epochs = [[(b.epoch, b.step) for _, b in zip(range(2), loader, strict=False)] for _ in range(3)]
    assert epochs == [[(e, 0), (e, 3)] for e in range(3)]


@pytest.mark.filterwarnings("ignore:every epoch of this loader is empty")
@pytest.mark.parametrize(("rows", "tail", "steps"), [(0, "pad", 0), (0, "keep", 0), (1, "drop", 0), (1, "pad", 1)])
def test_tiny_tables(connect: Any, rows: int, tail: Any, steps: int) -> None:
    with Peer(Table(rows, [(0, rows)])) as peer:
        loader = connect(peer.endpoint).loader(global_batch_size=4, tail=tail, world=World(1, 2))
        batches = list(loader)
        assert len(loader) == len(batches) == steps
        assert [batch.valid.tolist() for batch in batches] == [[False, False]] * steps
