# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The order of mixtures: golden vectors, the oracle, the law itself, and equal batches for every world and worker."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from order import Mixture as Oracle

from kubeflow_datacache.order.epoch import Share
from kubeflow_datacache.order.mix import Mix, Part
from kubeflow_datacache.order.shares import Shares
from vectors import order_fields, vectors

VECTORS: list[Any] = vectors("mix_vectors.json")["cases"]
WHOLE = Share()


def draws_of(mix: Mix, steps: range, share: Share = WHOLE) -> list[list[int]]:
    """[part, row] at each position of the steps."""
    sources, rows = mix.locate(mix.rows_of(steps, share))
    return np.stack([sources.astype(np.int64), rows], 1).tolist()


@pytest.mark.parametrize("vector", VECTORS, ids=range(len(VECTORS)))
def test_golden_mixtures(vector: dict[str, Any]) -> None:
    mix = Mix(
        rows=vector["length"],
        **order_fields(vector),
        parts=tuple(Part(rows=part["rows"], weights=tuple(part["weights"])) for part in vector["parts"]),
        phases=tuple(vector["phases"]),
        unit=vector["unit"],
    )
    for rank, steps in enumerate(vector["ranks"]):
        share = Share(rank=rank, world=vector["world"])
        assert mix.steps == vector["start_step"] + len(steps)
        for step, draws, valid in steps:
            assert draws_of(mix, range(step, step + 1), share) == draws
            assert mix.valid(mix.span(step, share)).tolist() == valid


def random_mix(rng: random.Random) -> dict[str, Any]:
    """The fields of a small mixture, with the names of Mix."""
    unit = rng.choice(["row", "batch"])
    batch = rng.randint(1, 12)
    size = batch if unit == "batch" else 1
    count, phases = rng.randint(1, 4), rng.choice([0, 0, 1, 2])
    weights = [[rng.randint(0 if phase and part else 1, 40) for phase in range(phases + 1)] for part in range(count)]
    draws = [rng.randint(1, 6) * sum(own[phase] for own in weights) * size for phase in range(phases)]
    return {
        "rows": rng.randint(0, 20) * size * rng.choice([1, 7]),
        "seed": rng.getrandbits(64),
        "shuffle": rng.random() < 0.8,
        "clump": rng.choice([1, 1, 2, 5, 100]),
        "window": rng.choice([0, 0, 1, 4]),
        "global_batch": batch,
        "tail": rng.choice(["drop", "pad", "keep"]),
        "parts": tuple(Part(rows=rng.randint(1, rng.choice([3, 20, 90])), weights=tuple(own)) for own in weights),
        "phases": tuple(draws),
        "unit": unit,
    }


def oracle_of(fields: dict[str, Any], epoch: int, share: Share = WHOLE) -> Oracle:
    """The oracle of the same mixture."""
    own = {name: value for name, value in fields.items() if name not in ("rows", "parts")}
    parts = tuple((part.rows, part.weights) for part in fields["parts"])
    return Oracle(**own, length=fields["rows"], parts=parts, epoch=epoch, **share.__dict__)


def test_steps_are_the_oracles(rng: random.Random, thorough: int) -> None:
    for _ in range(25 * thorough):
        fields, number = random_mix(rng), rng.choice([0, 1, 5])
        world, workers = rng.randint(1, 5), rng.randint(1, 3)
        share = Share(rank=rng.randrange(world), world=world, worker=rng.randrange(workers), workers=workers)
        mix, oracle = Mix(**fields, number=number), oracle_of(fields, number, share)
        want = oracle.share()
        steps = range(share.first_step(0), mix.steps, workers)
        assert list(steps) == [step.number for step in want], (fields, share)
        got = draws_of(mix, steps, share)
        assert got == [list(draw) for step in want for draw in step.draws], (fields, number, share)


def test_the_law(rng: random.Random, thorough: int) -> None:
    """Every T draws have exactly w_i of part i, also across epochs and phases; parts come in whole epochs of theirs."""
    for _ in range(20 * thorough):
        fields = random_mix(rng)
        parts: tuple[Part, ...] = fields["parts"]
        fields |= {"rows": 5 * fields["global_batch"], "tail": "keep"}
        size = fields["global_batch"] if fields["unit"] == "batch" else 1
        needed = sum(fields["phases"]) + 4 * size * sum(part.weights[-1] for part in parts)
        draws: list[list[int]] = []
        while len(draws) < needed:
            mix = Mix(**fields, number=len(draws) // fields["rows"])
            draws += draws_of(mix, range(mix.steps))
        taken, counts = [0] * len(parts), [Counter[int]() for _ in parts]
        for phase in range(len(fields["phases"]) + 1):
            block = size * sum(part.weights[phase] for part in parts)
            for _ in range(4 if phase == len(fields["phases"]) else fields["phases"][phase] // block):
                now, draws = draws[:block], draws[block:]
                sources = Counter(part for part, _ in now)
                assert [sources[i] for i in range(len(parts))] == [part.weights[phase] * size for part in parts], fields
                for source, row in now:
                    taken[source] += 1
                    counts[source][row] += 1
        for part, count, seen in zip(parts, taken, counts, strict=True):
            times = Counter(seen[row] for row in range(part.rows))
            whole, more = divmod(count, part.rows)
            assert times == +Counter({whole: part.rows - more, whole + 1: more}), fields


@pytest.mark.parametrize("workers", range(5))
def test_global_batches_are_the_same_for_every_world(workers: int, rng: random.Random) -> None:
    """The ledger by arithmetic: worlds of 1 to 64 ranks, 0 to 4 workers (0 reads as 1), over the epochs' tails."""
    shares = shares_of(7, 2, 1, exact="step", until="all")
    order = shares.order([500, 90, 7], seed=rng.getrandbits(64), shuffle=True, clump=1, global_batch=50, tail="keep")
    keep = replace(order, rows=order.rows - 13)
    steps, count = range(keep.steps), max(1, workers)
    want = [keep.rows_of(range(step, step + 1), WHOLE).tolist() for step in steps]
    for world in range(1, 65):
        got: list[list[int]] = [[] for _ in steps]
        for rank in range(world):
            for worker in range(count):
                reader = Share(rank=rank, world=world, worker=worker, workers=count)
                own = steps[reader.first_step(0) :: count]
                rows: list[int] = keep.rows_of(own, reader).tolist()
                for step in own:
                    size = len(range(*keep.span(step, reader)))
                    assert size in (keep.size(step) // world, -(-keep.size(step) // world))
                    got[step] += rows[:size]
                    rows = rows[size:]
        assert got == want, world
    counts = [np.bincount(keep.locate(np.array(rows))[0], minlength=3).tolist() for rows in want]
    assert counts[:-1] == [[35, 10, 5]] * (len(steps) - 1), "counts are exact in every whole step"


def test_large_mixtures_are_the_oracles(rng: random.Random) -> None:
    for _ in range(30):
        weights = [rng.randint(1, 1 << 58) for _ in range(3)]
        rows = [rng.randint(1, 1 << 60) for _ in weights]
        fields: dict[str, Any] = {
            "rows": rng.randint(1 << 30, 1 << 50),
            "seed": rng.getrandbits(64),
            "shuffle": True,
            "clump": rng.choice([1, 64, 1 << 30]),
            "global_batch": 64,
            "tail": "drop",
            "parts": tuple(Part(rows=n, weights=(w,)) for n, w in zip(rows, weights, strict=True)),
        }
        number = rng.choice([0, rng.randrange((1 << 62) // fields["rows"])])
        mix = Mix(**fields, number=number)
        step, share = rng.randrange(mix.steps), Share(rank=rng.randrange(9), world=9)
        oracle = oracle_of(fields | {"phases": (), "unit": "row"}, number)
        want = [list(oracle.draw(position)) for position in range(*mix.span(step, share))]
        assert draws_of(mix, range(step, step + 1), share) == want, (fields, number, step)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"unit": "step"}, "unit = 'step'"),
        ({"unit": "batch", "rows": 33}, "rows = 33: want a multiple of global_batch = 4"),
        ({"parts": ()}, "parts: 0, want 1 to 256"),
        ({"phases": (8,) * 64}, "phases: 64, want at most 63"),
        ({"phases": (8,)}, "weights: 1, want 2, one for each phase"),
        ({"number": 1 << 57}, "epoch = 144115188075855872"),
        ({"rows": 1 << 62}, "rows = 4611686018427387904"),
        ({"parts": (Part(rows=5, weights=(1, 2)),), "phases": (3, )}, None),
        ({"parts": (Part(rows=5, weights=(2, 2)),), "phases": (3,)}, r"phases\[0\] = 3: want a multiple of 2"),
        ({"parts": (Part(rows=5, weights=(0, 2)),), "phases": (3,)}, "weights of phase 0"),
    ],
)  # fmt: skip
def test_bad_mixtures_are_refused_by_name(change: dict[str, Any], message: str | None) -> None:
    good: dict[str, Any] = {"rows": 32, "global_batch": 4, "parts": (Part(rows=9, weights=(1,)),)}
    if message is None:
        Mix(**(good | change))
        return
    with pytest.raises(ValueError, match=message):
        Mix(**(good | change))
    for weights in ((0,), (-1,), (1 << 62,)):
        with pytest.raises(ValueError, match="weights"):
            Part(rows=1, weights=weights)


def shares_of(*proportions: Any, **options: Any) -> Shares:
    """Shares of parts a, b, ...; each proportion is a number, or one for each phase."""
    own = {chr(97 + i): tuple(map(Fraction, p if isinstance(p, tuple) else (p,))) for i, p in enumerate(proportions)}
    defaults: dict[str, Any] = {"exact": "epoch", "per": "row", "until": "first", "phases": ()}
    return Shares(proportions=own, **(defaults | options))


def test_weights_and_lengths() -> None:
    def made(shares: Shares, rows: list[int], tail: Any = "keep", batch: int = 10) -> tuple[int, list[tuple[int, ...]]]:
        order = shares.order(rows, seed=0, shuffle=True, clump=1, global_batch=batch, tail=tail)
        return order.rows, [part.weights for part in order.parts]

    assert made(shares_of("0.7", "0.3"), [100, 30]) == (100, [(70,), (30,)])
    assert made(shares_of("0.7", "0.3"), [105, 31]) == (103, [(72,), (31,)])
    assert made(shares_of("0.7", "0.3"), [105, 31], "drop") == (100, [(70,), (30,)])
    assert made(shares_of("0.7", "0.3", until="all"), [105, 31]) == (150, [(105,), (45,)])
    assert made(shares_of("0.7", "0.3", until="all"), [106, 31], "drop") == (160, [(112,), (48,)])
    assert made(shares_of(1, 1, 1, until=100), [5, 5, 5]) == (100, [(34,), (33,), (33,)])
    assert made(shares_of("0.7", "0.3", exact="step"), [100, 31]) == (100, [(7,), (3,)])
    assert made(shares_of("0.7", "0.3", exact="step", until="all"), [100, 31]) == (150, [(7,), (3,)])
    assert made(shares_of("0.7", "0.3", per="batch"), [100, 31]) == (100, [(7,), (3,)])
    assert made(shares_of("0.7", "0.3", per="batch", until="all"), [100, 31]) == (150, [(11,), (4,)])
    assert made(shares_of((9, 1), (1, 1), phases=(2,), until=40), [5, 5]) == (40, [(18, 20), (2, 20)])
    assert made(shares_of((9, 1), (1, 1), phases=(8,), until=40), [5, 5]) == (40, [(36, 20), (4, 20)])
    assert made(shares_of((1, 1), (0, 1), phases=(3,), exact="step", until=40), [5, 5]) == (40, [(10, 5), (0, 5)])
    assert made(shares_of(7 * 10**11, 3 * 10**11), [10**12, 10**12])[0] == 10**13 // 7


@pytest.mark.parametrize(
    ("options", "rows", "message"),
    [
        ({"exact": "step", "per": "batch"}, [], "exact = \"step\" with per = \"batch\""),
        ({"exact": "batch"}, [], "exact = 'batch': want 'epoch' or 'step'"),
        ({"until": "last"}, [], "until = 'last'"),
        ({"until": 0}, [], "until = 0"),
        ({"phases": (5,)}, [], "until = 'first' with phases"),
        ({"phases": (0,), "until": 5}, [], r"phases\[0\] = 0"),
        ({"exact": "step", "until": 44}, [9, 9], "until = 44: want a multiple of global_batch_size = 10, such as 40"),
        ({"exact": "step"}, [6, 9], "part 'a' has 6 rows, too few for one step"),
        ({"until": 3}, [6, 9], None),
    ],
)  # fmt: skip
def test_bad_shares_are_refused_by_name(options: dict[str, Any], rows: list[int], message: str | None) -> None:
    def make() -> None:
        shares = shares_of("0.7", "0.3", **options)
        shares.order(rows, seed=0, shuffle=True, clump=1, global_batch=10, tail="keep")

    if message is None:
        make()
        return
    with pytest.raises(ValueError, match=message):
        make()


def test_a_weight_that_rounds_to_nothing_is_refused() -> None:
    shares = shares_of("0.99", "0.01", exact="step")
    with pytest.raises(ValueError, match=r"part 'b' has 0\.1 of the 10 draws for which counts are exact"):
        shares.order([500, 500], seed=0, shuffle=True, clump=1, global_batch=10, tail="keep")
