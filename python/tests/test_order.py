# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The numpy implementation of the epoch order against the golden vectors and the oracle, which also test the Go one."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from order import Epoch as Oracle
from order import Permutation as SlowPermutation

from kubeflow_datacache.order.epoch import Epoch, Share
from kubeflow_datacache.order.feistel import Feistel
from vectors import order_fields, vectors

VECTORS: dict[str, Any] = vectors("order_vectors.json")


@pytest.mark.parametrize("vector", VECTORS["permutations"], ids=lambda v: f"n={v['n']}")
def test_golden_permutations(vector: dict[str, Any]) -> None:
    p = Feistel(vector["n"], vector["seed"], vector["epoch"])
    assert p.apply(np.array(vector["x"], np.uint64)).tolist() == vector["y"]
    assert [p.inverse(y) for y in vector["y"]] == vector["x"]


@pytest.mark.parametrize("vector", VECTORS["epochs"], ids=lambda v: f"n={v['n']} {v['tail']} clump={v['clump']}")
def test_golden_epochs(vector: dict[str, Any]) -> None:
    epoch = Epoch(rows=vector["n"], **order_fields(vector))
    for rank, steps in enumerate(vector["ranks"]):
        share = Share(rank=rank, world=vector["world"])
        assert epoch.steps == len(steps)
        for step, rows, valid in steps:
            assert epoch.rows_of(range(step, step + 1), share).tolist() == rows
            assert epoch.valid(epoch.span(step, share)).tolist() == valid


LANES: dict[str, Any] = vectors("lanes_vectors.json")


@pytest.mark.parametrize("vector", LANES["epochs"], ids=lambda v: f"n={v['n']} {v['tail']} clump={v['clump']}")
def test_golden_lanes(vector: dict[str, Any]) -> None:
    epoch = Epoch(rows=vector["n"], **order_fields(vector), order=2)
    for rank, steps in enumerate(vector["ranks"]):
        share = Share(rank=rank, world=vector["world"])
        assert epoch.steps == len(steps)
        for step, rows, valid in steps:
            assert epoch.rows_of(range(step, step + 1), share).tolist() == rows
            assert epoch.valid(epoch.span(step, share)).tolist() == valid


WINDOWS: dict[str, Any] = vectors("window_vectors.json")


@pytest.mark.parametrize("vector", WINDOWS["cases"], ids=lambda v: f"n={v['rows']} {v['tail']} window={v['window']}")
def test_golden_windows(vector: dict[str, Any]) -> None:
    epoch = Epoch(rows=vector["rows"], order=vector["order"], **order_fields({**vector, "shuffle": True}))
    for rank, steps in enumerate(vector["ranks"]):
        share = Share(rank=rank, world=vector["world"])
        assert epoch.steps == len(steps) + min(vector["start_step"], epoch.steps)
        for step, rows, valid in steps:
            assert epoch.rows_of(range(step, step + 1), share).tolist() == rows
            assert epoch.valid(epoch.span(step, share)).tolist() == valid


@pytest.mark.parametrize("vector", LANES["rows"], ids=lambda v: f"n={v['n']}")
def test_golden_rows_of_large_epochs_with_lanes(vector: dict[str, Any]) -> None:
    fields = {"rows": vector["n"], "seed": vector["seed"], "number": vector["epoch"]}
    epoch = Epoch(**fields, global_batch=vector["global_batch"], order=2)
    for position, row in zip(vector["positions"], vector["rows"], strict=True):
        assert epoch.rows_at(np.array([position], np.uint64)).tolist() == [row]


def test_permutation_is_the_oracles_for_any_size(rng: random.Random, thorough: int) -> None:
    for _ in range(500 * thorough):
        n = rng.choice([rng.randint(1, 40), rng.randint(1, 1 << 14), rng.randint(1, 1 << 61), 1 << rng.randint(0, 61)])
        seed, number = rng.getrandbits(64), rng.getrandbits(rng.choice([3, 64]))
        p, oracle = Feistel(n, seed, number), SlowPermutation(n, seed, number)
        xs = [rng.randrange(n) for _ in range(3)]
        assert p.apply(np.array(xs, np.uint64)).tolist() == [oracle.at(x) for x in xs], (n, seed, number)
        assert p.inverse(oracle.at(xs[0])) == xs[0], (n, seed, number)


@pytest.mark.parametrize("n", [1, 2, 4095, 4096, 4097, 8192, 8193, 40_009])
def test_permutation_is_a_bijection(n: int) -> None:
    out = Feistel(n, 3, 4).apply(np.arange(n, dtype=np.uint64))
    assert np.array_equal(np.sort(out), np.arange(n))


def test_steps_are_the_oracles(rng: random.Random, thorough: int) -> None:
    for _ in range(800 * thorough):
        n = rng.choice([0, 1, 2, rng.randint(0, 40), rng.randint(0, 120), 97, 101])
        options: dict[str, Any] = {
            "rows": n,
            "seed": rng.getrandbits(64),
            "shuffle": rng.random() < 0.8,
            "clump": rng.choice([1, 1, 2, 3, 7, rng.randint(1, 2 * n + 1)]),
            "window": rng.choice([0, 0, 1, 3, rng.randint(1, 2 * n + 1)]),
            "global_batch": rng.randint(1, rng.choice([3, 20, 2 * n + 1])),
            "tail": rng.choice(["drop", "pad", "keep"]),
        }
        if options["shuffle"] and rng.random() < 0.02:
            options |= {"order": 2, "global_batch": rng.randint(64, 90), "rows": rng.randint(0, 400)}
        number, world, workers = rng.randint(0, 5), rng.randint(1, 9), rng.randint(1, 4)
        share = Share(rank=rng.randrange(world), world=world, worker=rng.randrange(workers), workers=workers)
        start = rng.choice([0, 0, rng.randint(0, 30)])
        oracle = Oracle(**options, epoch=number, **share.__dict__, start_step=start)
        epoch = Epoch(**options, number=number)
        assert epoch.steps == oracle.steps()
        want = oracle.share()
        steps = range(share.first_step(start), epoch.steps, workers)
        assert list(steps) == [step.number for step in want], (options, share, start)
        assert epoch.rows_of(steps, share).tolist() == [row for step in want for row in step.rows], (
            options,
            share,
            start,
        )
        assert [epoch.valid(epoch.span(s, share)).tolist() for s in steps] == [s.valid for s in want], (options, share)


def test_large_epochs_stay_exact(rng: random.Random) -> None:
    for _ in range(200):
        n = rng.randint(1 << 59, 1 << 61)
        clump = rng.choice([1, 1, 2, 64, 1000, rng.randint(1, 1 << 40)])
        batch = rng.choice([64, 1000, rng.randint(1 << 20, 1 << 58)])
        order: dict[str, Any] = {"clump": clump, "window": rng.choice([0, 0, 5000, rng.randint(1, 1 << 60)])}
        order |= {"seed": rng.getrandbits(64), "global_batch": batch, "tail": "keep"}
        epoch, oracle = Epoch(rows=n, number=3, **order), Oracle(rows=n, epoch=3, **order)
        step, world = rng.randrange(epoch.steps), rng.randint(batch // 50 + 1, batch)
        share = Share(rank=rng.randrange(world), world=world)
        span = epoch.span(step, share)
        got = epoch.rows_of(range(step, step + 1), share).tolist()
        assert got == [oracle.row(p) for p in range(*span)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": 1 << 62}, "rows = 4611686018427387904"),
        ({"rows": -1}, "rows = -1"),
        ({"clump": 0}, "clump = 0"),
        ({"window": -1}, "window = -1"),
        ({"global_batch": 0}, "global_batch = 0"),
        ({"seed": -1}, "seed = -1"),
        ({"tail": "Keep"}, "tail = 'Keep'"),
        ({"order": 3}, "order = 3: want 1 or 2"),
        ({"order": 2}, "global_batch = 4: want at least 64 with order = 2"),
        ({"order": 2, "shuffle": False}, "order = 2: want shuffle = True"),
    ],
)
def test_bad_epochs_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {"rows": 9, "global_batch": 4}
    with pytest.raises(ValueError, match=message):
        Epoch(**(good | options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 2, "world": 2}, "rank = 2 is outside world = 2"),
        ({"rank": -1}, "rank = -1"),
        ({"world": 0}, "world = 0"),
        ({"worker": 3, "workers": 3}, "worker = 3 is outside workers = 3"),
    ],
)
def test_bad_shares_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Share(**options)
