# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A loader's position, as saved in checkpoints."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Self

from kubeflow_datacache.errors import StateError
from kubeflow_datacache.order.epoch import VERSION as ORDER_VERSION
from kubeflow_datacache.order.epoch import Epoch

VERSION: Final = 1
_LARGEST: Final = 1 << 16  # largest batch size that an error message suggests
_SHOWN: Final = 8  # number of batch sizes that an error message suggests
_POSITION = ("epoch", "next_step")  # the fields that hold the position; all others must match the loader


@dataclass(frozen=True, kw_only=True)
class State:
    """A loader's position, and everything that determines the order of rows. Valid for every rank and any world size.

    next_step is the first step of the epoch that has not been returned. All fields are JSON-serializable.
    """

    version: int = VERSION
    order_version: int = ORDER_VERSION
    table_uuid: str
    snapshot: int | str | None
    filter: str
    rows: int
    fingerprint: str
    seed: int
    shuffle: bool
    clump: int
    global_batch_size: int
    tail: str
    epoch: int
    next_step: int

    def as_dict(self) -> dict[str, Any]:
        """The state as a dict of JSON-serializable values."""
        return asdict(self)

    def checked_position(self, saved: Mapping[str, Any], *, steps: int) -> Self:
        """Validates a saved state against this one and returns it. Raises StateError, naming the field, if they do not
        match.

        steps: the number of steps in an epoch; next_step = steps is the position after the last one.
        """
        names = [field.name for field in fields(self)]
        for name in names:  # in field order, so that a different table is reported before its fingerprint
            if name not in saved:
                raise StateError(
                    f"state: {name} is missing: this is no state of a datacache loader of version {VERSION}"
                )
            if name not in _POSITION and saved[name] != getattr(self, name):
                raise StateError(_mismatch(name, saved[name], getattr(self, name)))
        if unknown := sorted(set(saved) - set(names)):
            raise StateError(f"state: unknown field {unknown[0]}: it was saved by a newer release")
        for name in _POSITION:
            if type(saved[name]) is not int or saved[name] < 0:
                raise StateError(f"state: {name} = {saved[name]!r}: want a whole number of at least 0")
        if saved["next_step"] > steps:
            raise StateError(
                f"state: next_step = {saved['next_step']}: an epoch has {steps} steps, want at most {steps}"
            )
        return type(self)(**saved)


def rescaled(saved: Mapping[str, Any], global_batch: int) -> dict[str, Any]:
    """Converts a saved state to the same position under another global batch size; the order of rows does not change.

    Raises StateError with a list of possible sizes if no step of that size begins there. Anything that is not a state
    is returned unchanged.
    """
    size, step = saved.get("global_batch_size"), saved.get("next_step")
    if size == global_batch or type(size) is not int or type(step) is not int or size < 1 or step < 0:
        return dict(saved)
    if is_complete(saved):
        step = Epoch(rows=saved["rows"], global_batch=global_batch, tail=saved["tail"]).steps
    elif (used := step * size) % global_batch:
        fitting = [n for n in range(1, min(used, _LARGEST) + 1) if used % n == 0]
        near = sorted(sorted(fitting, key=lambda n: abs(n - global_batch))[:_SHOWN])
        raise StateError(
            f"state: {used} rows of the epoch were read, in steps of global_batch_size = {size}, and no step of"
            f" {global_batch} rows begins there: give a divisor of {used}, such as {', '.join(map(str, near))}"
        )
    else:
        step = used // global_batch
    return {**saved, "global_batch_size": global_batch, "next_step": step}


def is_complete(state: Mapping[str, Any]) -> bool:
    """Whether a saved position is after the epoch's last step. False for invalid states, which are rejected later."""
    try:
        order = Epoch(rows=state["rows"], global_batch=state["global_batch_size"], tail=state["tail"])
    except (KeyError, TypeError, ValueError):
        return False
    return 0 < order.steps == state.get("next_step")


def warn_nothing_left(epoch: int) -> None:
    """Warns that an epoch will be empty because the loaded state was saved after its last step."""
    warnings.warn(
        f"set_epoch({epoch}): the loaded state was saved after the last step of epoch {epoch}, so nothing is left of"
        f" it; training goes on with epoch {epoch + 1}",
        stacklevel=3,
    )


def _mismatch(name: str, saved: object, here: object) -> str:
    text = f"state: {name} = {saved!r}, but this loader has {here!r}"
    if name in ("version", "order_version"):
        return f"{text}: use the release of kubeflow-datacache that saved it"
    if name in ("table_uuid", "snapshot", "filter", "rows", "fingerprint"):
        return (
            f"{text}: it was saved while reading other rows. Start the cache with that table, snapshot and filter, or"
            " begin the training anew"
        )
    return f"{text}: make the loader with {name}={saved!r} to go on where it was saved"
