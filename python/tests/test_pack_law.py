# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The packs of the loader are those of the law, for any lengths, any number of ranks and from any step on."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kubeflow_datacache import Pack
from kubeflow_datacache.order.pack import Long, PackedStep, Packer
from pack_law import Law
from vectors import vectors

GOLDEN = Path(__file__).parents[2] / "test/golden/pack_vectors.json"


def _packer(law: Law, rows: int, long: Long = "refuse") -> Packer:
    pack = Pack("x", law.tokens, law.packs, law.multiple, law.quadratic, law.window, long)
    return Packer(pack, rows=rows, seed=law.seed, epoch=law.epoch, refused=_refused)


def _refused(position: int, length: int) -> None:
    raise ValueError(position, length)


def _parts(lengths: list[int], position: int, rng: random.Random) -> Iterator[Any]:
    """The lengths as they may arrive: in parts of any size."""
    while position < len(lengths):
        count = rng.randint(1, 60)
        yield np.array(lengths[position : position + count], np.int32)
        position += count


def _positions(step: PackedStep) -> list[list[int]]:
    return [pack.positions.tolist() for pack in step.packs]


def _random(rng: random.Random) -> tuple[Law, list[int]]:
    multiple = rng.choice([1, 2, 4, 8])
    law = Law(
        tokens=multiple * rng.randint(4, 40),
        packs=rng.randint(1, 8),
        window=rng.randint(1, 4),
        multiple=multiple,
        quadratic=rng.randint(0, 5000),
        seed=rng.getrandbits(64),
        epoch=rng.getrandbits(64),
    )
    lengths = [
        min(law.tokens, int(rng.lognormvariate(2.3, 1))) * (rng.random() > 0.03) for _ in range(rng.randint(0, 90))
    ]
    return law, lengths


def test_packs_are_those_of_the_law(rng: random.Random, thorough: int) -> None:
    for _ in range(20 * thorough):
        law, lengths = _random(rng)
        want = law.steps(lengths)
        steps = list(_packer(law, len(lengths)).steps(0, _parts(lengths, 0, rng)))
        assert [(step.position, step.index, _positions(step)) for step in steps] == want, (law, lengths)
        rows = sorted(p for step in steps for pack in _positions(step) for p in pack)
        assert rows == [p for p, length in enumerate(lengths) if length], "a row is missing, or comes twice"
        for step in steps:
            numbers = {tuple(pack.positions.tolist()): i for i, pack in enumerate(step.packs)}
            for world in (1, 2, 3, law.packs, 11):
                ranks = [
                    [-1 if p is None else numbers[tuple(p.positions.tolist())] for p in step.share(r, world)]
                    for r in range(world)
                ]
                assert ranks == law.deal(_positions(step), lengths, world), (law, lengths, world)
        if steps:  # resumed at a random step: the remaining steps are equal for any world size
            first = rng.randrange(len(steps))
            at = steps[first - 1].following if first else (0, 0)
            again = _packer(law, len(lengths)).steps(at[0], _parts(lengths, at[0], rng))
            rest = list(itertools.islice(again, at[1], None))
            assert [_positions(step) for step in rest] == [_positions(step) for step in steps[first:]]


def test_other_budgets_from_any_window_on(rng: random.Random) -> None:
    lengths = [rng.randint(1, 64) for _ in range(200)]
    position, seen = 0, list[int]()
    while position < len(lengths):
        law = Law(tokens=rng.choice([64, 96]), packs=rng.choice([1, 2, 5]), window=rng.choice([1, 2]), seed=3)
        for step in _packer(law, len(lengths)).steps(position, _parts(lengths, position, rng)):
            seen += [p for pack in _positions(step) for p in pack]
            if step.following[1] == 0:
                position = step.following[0]
                break
    assert sorted(seen) == list(range(len(lengths)))


@pytest.mark.parametrize("long", ["split", "truncate", "drop"])
def test_long_rows(rng: random.Random, long: Long) -> None:
    lengths = [rng.choice([0, 1, 7, 16, 17, 40]) for _ in range(150)]
    law = Law(tokens=16, packs=3, multiple=4, seed=1)
    steps = list(_packer(law, len(lengths), long).steps(0, _parts(lengths, 0, rng)))
    held = dict[int, list[tuple[int, int]]]()
    for step in steps:
        assert len(step.packs) == 3 or step is steps[-1] or long == "split", (
            "only rows of several pieces fill fewer packs"
        )
        for pack in step.packs:
            assert sum(-(-n // 4) * 4 for n in pack.lengths.tolist()) <= 16
            for position, start, length in zip(*(a.tolist() for a in pack), strict=True):
                held.setdefault(position, []).append((start, length))
    for position, length in enumerate(lengths):
        pieces = [(start, min(16, length - start)) for start in range(0, length, 16)]
        want = {"split": pieces, "truncate": pieces[:1], "drop": pieces if length <= 16 else []}[long]
        assert sorted(held.get(position, [])) == want, position
    counts = {
        name: sum(getattr(step.counts, name) for step in steps)
        for name in ("rows", "empty", "dropped", "truncated", "split")
    }
    over, name = sum(length > 16 for length in lengths), {"drop": "dropped", "truncate": "truncated"}.get(long, long)
    assert counts == {"rows": 150, "empty": lengths.count(0), "dropped": 0, "truncated": 0, "split": 0, name: over}


def test_rows_that_no_window_holds_are_refused() -> None:
    cases: list[tuple[Long, int]] = [("refuse", 17), ("split", 49)]
    for long, length in cases:
        with pytest.raises(ValueError, match=rf"\(2, {length}\)"):
            list(_packer(Law(tokens=16, packs=3), 4, long).steps(0, iter([np.array([1, 16, length, 1])])))


def _vector(law: Law, lengths: list[int]) -> dict[str, Any]:
    steps = [
        {
            "position": position,
            "step": index,
            "packs": packs,
            "ranks": {str(w): law.deal(packs, lengths, w) for w in (1, 2, 3)},
        }
        for position, index, packs in law.steps(lengths)
    ]
    return {**law.__dict__, "lengths": lengths, "steps": steps}


def test_golden_packs(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update"):
        rng = random.Random(48)
        cases = [_vector(*_random(rng)) for _ in range(8)]
        GOLDEN.write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")
    for vector in vectors("pack_vectors.json"):
        fields = {name: vector[name] for name in Law.__dataclass_fields__}
        lengths = vector["lengths"]
        steps = list(_packer(Law(**fields), len(lengths)).steps(0, iter([np.array(lengths)])))
        assert len(steps) == len(vector["steps"])
        for step, want in zip(steps, vector["steps"], strict=True):
            assert (step.position, step.index, _positions(step)) == (want["position"], want["step"], want["packs"])
            for world, ranks in want["ranks"].items():
                shares = [step.share(rank, int(world)) for rank in range(int(world))]
                got = [
                    [-1 if p is None else want["packs"].index(p.positions.tolist()) for p in share] for share in shares
                ]
                assert got == ranks
