# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The plan of a rank's packs as the head makes it, once for all ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa

from kubeflow_datacache.client import StreamClient
from kubeflow_datacache.errors import ColumnError, RefusedError
from kubeflow_datacache.order.pack import Counts
from kubeflow_datacache.order.packed import RankStep, Spans
from kubeflow_datacache.stop import Stop

_MOST_STEPS: Final = 64  # asked for at once; the first answer has one, so that the first batch comes early
_ALL_STEPS: Final = 4096  # asked for at once to count them
_NOBODY: Final = 1 << 31  # a number of ranks of which the last has no packs
_LONG: Final = " tokens, more than "  # in the refusal of rows that are too long
_UNKNOWN: Final = 'command: kind: "pack"'  # begin of the refusal of a head of an earlier release


class NotPlannedError(Exception):
    """The head does not plan these packs: it is of an earlier release, or a window has too many rows for it."""


class HeadPlan:
    """The head's plan of the packs of an epoch. request: its fields, without rank, world, position, step and steps.

    Methods raise NotPlannedError, ColumnError for rows that are too long, and RefusedError for what else the head
    refuses. Safe for concurrent use.
    """

    def __init__(self, cache: StreamClient, request: Mapping[str, Any]) -> None:
        self._cache, self._request = cache, {"kind": "pack", **request}

    def check(self) -> None:
        """Asks the head whether it takes the request, and whether rows are too long."""
        try:
            self._cache.get_flight_info({**self._request, "rank": 0, "world": 1})
        except RefusedError as error:
            raise _refusal(error) from error

    def count(self) -> int:
        """The number of steps of the epoch."""
        return sum(1 for _ in self._read(0, 0, _NOBODY - 1, _NOBODY, _ALL_STEPS, None))

    def steps(self, position: int, index: int, rank: int, world: int, stop: Stop) -> Iterator[RankStep]:
        """The steps of a rank from one of the window on that begins at a position."""
        return self._read(position, index, rank, world, 1, stop)

    def _read(
        self, position: int, index: int, rank: int, world: int, steps: int, stop: Stop | None
    ) -> Iterator[RankStep]:
        while True:
            asked = {"rank": rank, "world": world, "position": position, "step": index, "steps": steps}
            try:
                answer = self._cache.read_packs({**self._request, **asked}, stop)
            except RefusedError as error:
                raise _refusal(error) from error
            if answer is None:
                raise NotPlannedError
            batch, about = answer
            for step in _steps(batch, about["steps"]):
                yield step
                position, index = step.following
            if about["end"]:
                return
            steps = max(steps, min(_MOST_STEPS, 4 * steps))


def _refusal(error: RefusedError) -> Exception:
    reason = str(error)
    if _LONG in reason:
        return ColumnError(reason.removeprefix("command: "))
    return NotPlannedError() if reason.startswith(_UNKNOWN) else error


def _steps(batch: pa.RecordBatch, steps: list[dict[str, Any]]) -> Iterator[RankStep]:
    """Decodes an answer (docs/contract.md, packs)."""
    micro, rows, starts, lengths = (column.to_numpy().astype(np.int64) for column in batch.columns)
    begin = 0
    for about in steps:
        end = begin + about["pieces"]
        bounds = np.searchsorted(micro[begin:end], np.arange(about["micro"] + 1)).tolist()
        spans = Spans(starts[begin:end], lengths[begin:end])
        counts = Counts(**about.get("counts", {}))
        position, index = about["next"]
        yield RankStep(rows[begin:end], spans, bounds, (position, index), about["tokens"], about["sequences"], counts)
        begin = end
