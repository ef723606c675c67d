# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""HostMerge: blocks from the reader of the host, or read alone."""

from __future__ import annotations

import hashlib
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kubeflow_datacache.errors import DataCacheError
from kubeflow_datacache.fetch.merge import Merge
from kubeflow_datacache.host.link import Link
from kubeflow_datacache.host.protocol import HostError, LeftError, Request, Start
from kubeflow_datacache.order.epoch import Share
from kubeflow_datacache.order.packed import RankSteps
from kubeflow_datacache.rows.block import StepBlock
from kubeflow_datacache.world import World

_log: Final = logging.getLogger("kubeflow_datacache")
_JOIN_SECONDS: Final = 5.0
_REQUIRED_SECONDS: Final = 60.0
# Options that a reader does not need: its source has the selection, and ranks transform and convert.
OF_RANKS: Final = {
    *("filter", "split", "transform", "transform_threads", "transform_processes"),
    *("null", "ragged", "cast", "host", "progress"),
}
# Variables that tell jobs of one user on one host from each other.
_JOB: Final = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TRAIN_JOB_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID")
_VERSION: Final = 3  # of the packets, and of what determines an address
_left: Final = set[str]()  # addresses of readers that this process gave up


@dataclass(frozen=True)
class Group:
    """The ranks of a host that one reader serves. address: that of the reader. part: which part of the rows this
    rank takes. required: whether a failure is an error."""

    address: str
    request: Request
    part: int
    required: bool


def group_of(
    source: Any,
    fingerprint: str,
    options: Mapping[str, Any],
    order: Mapping[str, Any],
    world: World,
    share: Share,
    *,
    required: bool,
    parts: int,
) -> Group | None:
    """The group of this rank; None if it reads alone: it is the only one of this host whose rows the reader would read,
    or the host has no shared memory.

    options: of the reader's loader; order: all that determines the order of its rows. parts: of how many consecutive
    ranks the reader reads the rows. Raises ValueError if a group is required.
    """
    ranks = parts * world.replicas_here() if sys.platform == "linux" else 1
    if ranks == 1:
        if required:
            raise ValueError(
                f'host = "require": {world!r} names no other rank of this host to read with: give'
                " world=World(rank, size, replicas=8) for 8 ranks with the same rows, World(rank, size, local=8) for 8"
                ' consecutive ranks of a loader without pack= and balance=, or host="auto"'
            )
        return None
    own = {**options, "world": World(share.rank // parts, share.world // parts), "seed": int(order["seed"])}
    job = [os.environ.get(name) for name in _JOB]
    here = [_VERSION, os.stat("/proc/self/ns/pid").st_ino, job, source.endpoint, dict(order), own, ranks, parts]
    digest = hashlib.sha256(repr(here).encode()).hexdigest()[:32]
    request = Request(source, own, fingerprint, ranks, parts)
    return Group(f"\0datacache-{os.getuid()}-{digest}", request, share.rank % parts, required)


class HostMerge(Merge):
    """Takes the blocks of a share from the reader of this host; after any failure of it, reads the rest alone.

    place: as of Start. steps: those of the plan, which the reader plans too, or None if they need no lengths. own,
    options: as of Merge.
    """

    def __init__(
        self, group: Group, place: tuple[int, int], steps: RankSteps[Any] | None, *own: Any, **options: Any
    ) -> None:
        super().__init__(*own, **options)
        self._group, self._place, self._steps, self._link = group, place, steps, Link(group.address)

    def stop(self) -> None:
        """Ends the iteration soon. Safe from any thread."""
        super().stop()
        self._link.close()

    def blocks(self, step: int) -> Iterator[StepBlock]:
        """Yields the blocks from a step on, in order. Every step comes exactly once, with all its rows."""
        if self._group.address not in _left and self._share.first_step(step) < self._epoch.steps:
            self._timer.set_producer("wire")
            try:
                for block in self._shared_blocks(step):
                    self._timer.set_producer("decode")
                    yield block
                    self._timer.set_producer("wire")
                    self.shared += len(block.steps)
                    step = block.steps[-1] + 1
            except (HostError, OSError) as error:
                if self._stopped:
                    return
                self._fail(error, step)
            else:
                return
            finally:
                self._link.release()
            if self._share.first_step(step) >= self._epoch.steps:
                return
        yield from super().blocks(step)

    def _shared_blocks(self, step: int) -> Iterator[StepBlock]:
        group = self._group
        try:
            seconds = _REQUIRED_SECONDS if group.required else _JOIN_SECONDS
            start = Start(self._epoch.number, step, *self._place)
            self._link.join(group.request, start, group.part, seconds)
        except Exception as error:
            raise LeftError(str(error)) from error
        for block, own in self._link.blocks(self._policy, lambda: self._timer.consumer_is_waiting):
            if block.steps[0] != self._share.first_step(step):
                raise HostError(f"the reader of this host sent step {block.steps[0]} after step {step - 1}")
            if self._steps is not None:
                self._steps.put(own)
            elif block.size != len(range(*self._epoch.span(block.steps[0], self._share))):
                raise HostError(f"the reader of this host sent {block.size} rows of step {block.steps[0]}")
            yield block
            step = block.steps[-1] + 1
        if self._steps is None and self._share.first_step(step) < self._epoch.steps:
            raise HostError(f"the reader of this host ended before step {step}")

    def _fail(self, error: Exception, step: int) -> None:
        """Raises DataCacheError if sharing is required."""
        reason = f"host: {error}"
        if isinstance(error, LeftError):
            _left.add(self._group.address)
        if self._group.required:
            raise DataCacheError(
                f'{reason}; host="require" wants the rows from the reader of this host: give host="auto" to read alone'
            ) from error
        _log.warning("%s; this rank reads alone from step %d on, the same rows", reason, step)
