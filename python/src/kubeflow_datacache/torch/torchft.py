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

import os
from collections.abc import Iterator
from datetime import timedelta
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

    group is this process's place in its replica group, for groups of several processes: World.detect() if they train
    on different rows and average their gradients, World() if they share the rows, as with tensor parallelism.
    """

    def __init__(self, loader: Loader | StreamingDataLoader, manager: Manager, group: World | None = None) -> None:
        if group is None and (size := World.detect().size) > 1:
            raise ValueError(
                f"Follow: this replica group has {size} processes: give group=World.detect() if each trains on rows of"
                " its own, or group=World() if all train on the same. If a group should be one pod or process, start"
                " it with torchrun --standalone --nnodes=1"
            )
        self._loader, self._manager, self._group = loader, manager, group or World()
        self._batches: Iterator[Any] = iter(())
        self._next: int | None = None  # the step that the iterator is at
        self._world, self._last = World(), None

    def next(self) -> Any:
        """The batch of the manager's current step, after its quorum has begun.

        A replica that heals takes part in no step: it gets a batch of the shape of its last one, with weight 0.
        """
        replica, size = self._manager.participating_rank(), self._manager.num_participants()
        step = self._manager.current_step()  # after the quorum, which may move a replica that rejoins
        group = self._group
        world = World((replica or 0) * group.size + group.rank, max(1, size) * group.size)
        if replica is None:
            self._next = None
            if self._last is None:
                self._last = self._read(world, step)
            self._last.weight = 0.0
            return self._last
        self._last = self._read(world, step)
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


def in_pod(timeout: timedelta = timedelta(seconds=60)) -> dict[str, Any]:
    """Arguments of torchft.Manager for a replica group that is a pod of the runtime torchft-with-cache.

    Pods can't look up each other's short host names, which torchft gives out by default: these have the pod's name in
    the cluster, which torchrun found. timeout is that of the transfer of weights to a replica that comes back.
    """
    from torchft.checkpointing.http_transport import HTTPTransport  # pyright: ignore[reportMissingImports]

    host = os.environ["MASTER_ADDR"]

    class Transport(HTTPTransport[Any]):
        def metadata(self) -> str:
            scheme, _, rest = super().metadata().partition("://")
            return f"{scheme}://{host}:{rest.rpartition(':')[2]}"

    return {
        "replica_id": f"replica_{os.environ['REPLICA_GROUP_ID']}",
        "hostname": host,
        "checkpoint_transport": Transport(timeout=timeout, num_chunks=0),
    }
