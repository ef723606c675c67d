# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Extracts the loader state from a state of torchdata's StatefulDataLoader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

MARK: Final = "kubeflow_datacache"  # key of our state in each worker's part of a StatefulDataLoader's state
_SINCE: Final = (
    # number of batches returned since the workers' states were saved (torchdata 0.11, stateful_dataloader.py)
    "_steps_since_snapshot"
)


def loader_state_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the loader state in a StatefulDataLoader's state, for any number of workers; any other state unchanged.

    Workers return batches in turn, so the position of training is that of the worker that is furthest ahead.
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
