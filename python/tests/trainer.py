# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A training process: runs jobs from standard input, and prints the rows read as JSON.

A separate process, because pytest's has connected to servers and its forks could not. Workers started by forkserver
need a main module that can be imported, such as this one.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from kit.deadline import limit
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from kubeflow_datacache import DataCache, World
from kubeflow_datacache.torch import StreamingDataLoader, StreamingDataset
from ranks import rank_environment

Kind = Literal["torch", "stateful", "streaming"]


@dataclass(frozen=True, kw_only=True)
class Job:
    """One loader, and what to read with it.

    kind: "torch" for torch's DataLoader, "stateful" for torchdata's, "streaming" for ours. context: the workers' start
    method. state: where to begin; native: whether StatefulDataLoader.load_state_dict loads it. epochs: each is set with
    set_epoch, then read; None is read without being set. each: the number of steps to read of each epoch; steps: of the
    last epoch. save: whether to return the state after each step of the last epoch. connected: whether this process
    connects to the cache before.
    """

    kind: Kind
    dataset: dict[str, Any]
    rank: int = 0
    world: int = 1
    workers: int = 0
    persistent: bool = False
    context: str | None = "fork"
    options: dict[str, Any] = field(default_factory=dict)
    state: dict[str, Any] | None = None
    native: bool = False
    epochs: Sequence[int | None] = (None,)
    each: int = 1 << 30
    steps: int = 1 << 30
    save: bool = False
    connected: bool = False


@dataclass
class Done:
    """The result of a job: the row ids by epoch and step, and the states."""

    epochs: list[list[list[int]]]
    states: list[dict[str, Any]]


def train(endpoint: str, jobs: Sequence[Job]) -> list[Done]:
    """Runs the jobs in a new process. Jobs without workers come last: they connect it, which rules out forks."""
    order = sorted(range(len(jobs)), key=lambda i: jobs[i].workers == 0)
    run = subprocess.run(
        [sys.executable, __file__],
        input=json.dumps({"endpoint": endpoint, "jobs": [asdict(jobs[i]) for i in order]}),
        capture_output=True,
        text=True,
        check=False,
        timeout=3 * limit(),
        env=rank_environment(),
    )
    assert run.returncode == 0, run.stderr
    done = {i: Done(**done) for i, done in zip(order, json.loads(run.stdout.splitlines()[-1]), strict=True)}
    return [done[i] for i in range(len(jobs))]


def do(cache: DataCache, job: Job) -> Done:
    """Runs a job in this process."""
    dataset = StreamingDataset(cache, **job.dataset, world=World(job.rank, job.world))
    loader = _loader(job, dataset)
    if job.state is not None:
        (loader if job.native or job.kind == "streaming" else dataset).load_state_dict(job.state)
    if job.connected:
        cache.status()
    done = Done([], [])
    for at, epoch in enumerate(job.epochs):
        if epoch is not None:
            (loader if job.kind == "streaming" else dataset).set_epoch(epoch)
        last = at == len(job.epochs) - 1
        done.epochs.append([])
        held = iter(loader)  # like frameworks, does not tell the loader that the iteration is over
        for batch in held:
            done.epochs[-1].append(batch["id"].tolist())
            if job.save and last:
                done.states.append(json.loads(json.dumps(loader.state_dict())))
            if len(done.epochs[-1]) >= min(job.each, job.steps if last else job.each):
                break
    return done


def _loader(job: Job, dataset: StreamingDataset) -> Any:
    options: dict[str, Any] = {"num_workers": job.workers, "persistent_workers": job.persistent, **job.options}
    if job.workers:
        options["multiprocessing_context"] = job.context
    if job.kind == "streaming":
        return StreamingDataLoader(dataset, **options)
    return (DataLoader if job.kind == "torch" else StatefulDataLoader)(dataset, batch_size=None, **options)


def main() -> None:
    """Reads jobs and prints their results."""
    orders = json.load(sys.stdin)
    cache = DataCache(orders["endpoint"], retry_seconds=limit())
    print(json.dumps([asdict(do(cache, Job(**job))) for job in orders["jobs"]]))


if __name__ == "__main__":
    main()
