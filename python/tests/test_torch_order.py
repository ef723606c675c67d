# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""torch's DataLoader, torchdata's and ours return the same batches in the same order for any number of workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from small import small_cache, steps_of

pytest.importorskip("torchdata")
from trainer import Job, Kind, train

OPTIONS: dict[str, Any] = {"global_batch_size": 7, "seed": 5, "clump": 2, "tail": "keep"}
CONNECTED: list[tuple[Kind, str | None]] = [("streaming", None), ("torch", "forkserver")]
KINDS: tuple[Kind, ...] = get_args(Kind)


@pytest.fixture(scope="module")
def endpoint(server: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cache of the small table."""
    with small_cache(server, tmp_path_factory.mktemp("small")) as one:
        yield one


def test_any_number_of_workers_gives_the_same_epochs(endpoint: str) -> None:
    jobs = [
        Job(kind=kind, dataset=OPTIONS, rank=1, world=2, workers=workers, persistent=persistent, epochs=(0, 1, 2))
        for kind in KINDS
        for workers in (0, 1, 2, 4)
        for persistent in ((False, True) if workers else (False,))
    ]
    want = [steps_of(OPTIONS, epoch, 1, 2) for epoch in range(3)]
    assert len({str(epoch) for epoch in want}) == 3, "every epoch is another order"
    for job, done in zip(jobs, train(endpoint, jobs), strict=True):
        assert done.epochs == want, job


def test_epochs_follow_each_other(endpoint: str) -> None:
    """Without set_epoch, in torch's own loader and torchdata's."""
    jobs = [
        Job(kind=kind, dataset=OPTIONS, workers=workers, persistent=persistent, epochs=(None, None, 7, None))
        for kind in KINDS
        for workers, persistent in ((0, False), (3, False), (3, True))
    ]
    for job, done in zip(jobs, train(endpoint, jobs), strict=True):
        assert done.epochs == [steps_of(OPTIONS, epoch) for epoch in (0, 1, 7, 8)], job


def test_workers_that_share_nothing_with_a_connected_process(endpoint: str) -> None:
    # Uses forkserver, our default: len() connects this process, after which a fork would not work.
    jobs = [
        Job(kind=kind, dataset=OPTIONS, workers=2, persistent=True, context=context, epochs=(1, 2), connected=True)
        for kind, context in CONNECTED
    ]
    for done in train(endpoint, jobs):
        assert done.epochs == [steps_of(OPTIONS, 1), steps_of(OPTIONS, 2)]


def test_our_loader_moves_on_by_itself(endpoint: str) -> None:
    crews = [(2, True), (2, False), (0, False)]
    jobs = [
        Job(kind="streaming", dataset=OPTIONS, workers=workers, persistent=persistent, epochs=(None, None, 7, None))
        for workers, persistent in crews
    ]
    padded = {**OPTIONS, "tail": "pad", "global_batch_size": 5}
    blocks = [
        Job(kind="streaming", dataset=padded, workers=workers, options={"bundle_bytes": size})
        for workers in (3, 0)
        for size in (1, 30_000)
    ]
    done = train(endpoint, jobs + blocks)
    for job, one in zip(jobs, done, strict=False):
        assert one.epochs == [steps_of(OPTIONS, epoch) for epoch in (0, 1, 7, 8)], job
    for job, one in zip(blocks, done[len(jobs) :], strict=True):
        assert one.epochs == [steps_of(padded, 0)], job
