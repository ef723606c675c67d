# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Batches that follow torchft's quorum.

from kubeflow_datacache.torch.torchft import Follow

batches = Follow(loader, manager)
while manager.current_step() < steps:
    optimizer.zero_grad()  # starts the quorum
    batch = batches.next()
    (loss_sum(batch) * batch.weight).backward()
    optimizer.step()  # commits, or leaves the step for the next quorum
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from kubeflow_datacache.loader import Loader
from kubeflow_datacache.torch.loader import StreamingDataLoader
from kubeflow_datacache.world import World


class Manager(Protocol):
    """What Follow asks of a torchft.Manager."""

    def current_step(self) -> int:
        """The number of committed steps."""
        ...

    def participating_rank(self) -> int | None:
        """This replica's rank in the quorum; None while it heals."""
        ...

    def num_participants(self) -> int:
        """The number of replicas in the quorum."""
        ...


class Follow:
    """The batches of a loader for the steps that a torchft.Manager commits, each cut for the replicas of its quorum.

    Every committed step is one global batch of the loader's order: after an aborted step the same batch comes again,
    cut for the new quorum, and a replica that rejoins goes on at the manager's step, without a state of its own. The
    loader's epochs follow each other. torchft must average gradients over num_participants(), as its Optimizer and
    DistributedDataParallel do.
    """

    def __init__(self, loader: Loader | StreamingDataLoader, manager: Manager) -> None:
        self._loader, self._manager = loader, manager
        self._batches: Iterator[Any] = iter(())
        self._next: int | None = None  # the step that the iterator is at
        self._world, self._last = World(), None

    def next(self) -> Any:
        """The batch of the manager's current step, after its quorum has begun.

        A replica that heals takes part in no step: it gets a batch of the shape of its last one, with weight 0.
        """
        rank, size = self._manager.participating_rank(), self._manager.num_participants()
        step = self._manager.current_step()  # after the quorum, which may move a replica that rejoins
        if rank is None:
            self._next = None
            if self._last is None:
                self._last = self._read(World(0, max(1, size)), step)
            self._last.weight = 0.0
            return self._last
        self._last = self._read(World(rank, size), step)
        self._next = step + 1
        return self._last

    def _read(self, world: World, step: int) -> Any:
        if self._next != step or self._world != world:
            self._loader.resize(world, step)
            self._world, self._batches = world, iter(self._loader)
        if (batch := next(self._batches, None)) is None:  # the end of an epoch
            self._batches = iter(self._loader)
            batch = next(self._batches)
        return batch
