# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Where training stands, read out of the state of torchdata's StatefulDataLoader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

MARK: Final = "kubeflow_datacache"  # the key under which a worker's part of a StatefulDataLoader's state has ours
_SINCE: Final = (
    "_steps_since_snapshot"  # torchdata 0.11, stateful_dataloader.py: batches given after the workers' states
)


def place_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """The loader state in a StatefulDataLoader's state, whatever number of workers it had; any other state as it is.

    Workers take turns, so the one that gave last is the furthest, and its next step is the training's.
    """
    parts = list(_ours(state))
    if not parts:
        return dict(state)
    last = max(parts, key=lambda part: part["next_step"])
    return {**last, "next_step": last["next_step"] + state.get(_SINCE, 0)}


def _ours(state: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for key, value in state.items():
        if isinstance(value, Mapping):
            if key == MARK:
                yield value
            else:
                yield from _ours(value)
