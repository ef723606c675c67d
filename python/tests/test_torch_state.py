# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Loader states are exact with workers and batches in flight, and valid for other numbers of workers and ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from small import small_cache, steps_of

pytest.importorskip("torchdata")
from trainer import Job, Kind, train

OPTIONS: dict[str, Any] = {"global_batch_size": 23, "seed": 9, "tail": "keep"}
STEPS = 7
KINDS: tuple[Kind, ...] = get_args(Kind)


@pytest.fixture(scope="module")
def endpoint(server: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cache of the small table."""
    with small_cache(server, tmp_path_factory.mktemp("small")) as one:
        yield one


BEFORE: list[tuple[Kind, int, dict[str, Any]]] = [
    ("streaming", 0, {"bundle_bytes": 200_000}),
    ("streaming", 2, {"bundle_bytes": 100_000}),
    ("stateful", 0, {}),
    ("stateful", 3, {}),
    ("stateful", 2, {"snapshot_every_n_steps": 3}),
]


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.night)])
def test_every_state_of_an_epoch_goes_on_elsewhere(endpoint: str, every: int) -> None:
    before = [
        Job(kind=kind, dataset=OPTIONS, rank=1, world=2, workers=workers, options=options, epochs=(0, 3), save=True)
        for kind, workers, options in BEFORE
    ]
    # All ranks of another world, with another number of workers, in a new process. After the rest of the epoch comes
    # epoch 4.
    rest: list[tuple[Job, int]] = []
    for number, (job, done) in enumerate(zip(before, train(endpoint, before), strict=True)):
        assert len(done.states) == STEPS
        for step, state in list(enumerate(done.states))[number % every :: every]:
            rank = (step + job.workers) % 3
            workers = (4, 1, 0)[step % 3]
            again = Job(kind=job.kind, dataset=OPTIONS, rank=rank, world=3, workers=workers, state=state, epochs=(3, 4))
            rest.append((again, step))
    for (job, step), done in zip(rest, train(endpoint, [job for job, _ in rest]), strict=True):
        want = [steps_of(OPTIONS, 3, job.rank, 3)[step + 1 :], steps_of(OPTIONS, 4, job.rank, 3)]
        assert done.epochs == want, f"from the state after step {step}: {job}"


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.night)])
def test_torchdatas_own_load_state_dict(endpoint: str, every: int) -> None:
    """StatefulDataLoader.load_state_dict, with the same number of workers in another world."""
    before = [Job(kind="stateful", dataset=OPTIONS, workers=workers, epochs=(2,), save=True) for workers in (0, 2)]
    rest: list[tuple[Job, int]] = []
    for job, done in zip(before, train(endpoint, before), strict=True):
        for step, state in list(enumerate(done.states[:-1]))[::every]:
            rest.append((replace(job, rank=1, world=2, state=state, native=True, save=False), step))
    for (job, step), done in zip(rest, train(endpoint, [job for job, _ in rest]), strict=True):
        assert done.epochs == [steps_of(OPTIONS, 2, 1, 2)[step + 1 :]], f"from the state after step {step}: {job}"


def test_an_iteration_goes_on_where_it_stood(endpoint: str) -> None:
    before = [
        Job(kind="streaming", dataset=OPTIONS, workers=workers, epochs=(1,), steps=3, save=True) for workers in (0, 2)
    ]
    rest: list[Job] = []
    for job, done in zip(before, train(endpoint, before), strict=True):
        rest.append(replace(job, state=done.states[-1], steps=2, epochs=(None,), save=False))
        rest.append(replace(job, state=done.states[1], workers=2 - job.workers, steps=99, epochs=(1, None), save=False))
    one, two = [steps_of(OPTIONS, epoch) for epoch in (1, 2)]
    for job, done in zip(rest, train(endpoint, rest), strict=True):
        assert done.epochs == ([one[3:5]] if job.steps == 2 else [one[2:], two]), job


def test_an_epoch_ends_for_those_who_count_its_steps(endpoint: str) -> None:
    before = [
        Job(kind=kind, dataset=OPTIONS, workers=workers, each=STEPS, epochs=(None,) * 4, save=kind == "streaming")
        for kind in KINDS
        for workers in (0, 2)
    ]
    done = train(endpoint, before)
    for job, taken in zip(before, done, strict=True):
        assert taken.epochs == [steps_of(OPTIONS, epoch) for epoch in range(4)], job
    rest = [
        Job(kind="streaming", dataset=OPTIONS, workers=workers, state=taken.states[-1], epochs=(None, None))
        for taken in done
        if taken.states
        for workers in (2, 0, 3)
    ]
    for job, read in zip(rest, train(endpoint, rest), strict=True):
        assert read.epochs == [steps_of(OPTIONS, 4), steps_of(OPTIONS, 5)], job


def test_a_complete_epoch_that_is_asked_for_is_empty(endpoint: str) -> None:
    (taken,) = train(endpoint, [Job(kind="streaming", dataset=OPTIONS, epochs=(3,), save=True)])
    rest = [
        Job(kind="streaming", dataset=OPTIONS, workers=workers, state=taken.states[-1], epochs=(3, 4))
        for workers in (2, 0)
    ]
    for job, read in zip(rest, train(endpoint, rest), strict=True):
        assert read.epochs == [[], steps_of(OPTIONS, 4)], job
