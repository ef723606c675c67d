# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A place in training, as a checkpoint keeps it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Self

from kubeflow_datacache.errors import StateError
from kubeflow_datacache.order.epoch import VERSION as ORDER_VERSION
from kubeflow_datacache.order.epoch import Epoch

VERSION: Final = 1
_LARGEST: Final = 1 << 16  # of the batch sizes that an error looks for
_SHOWN: Final = 8  # of the batch sizes that do, in an error
_PLACE = ("epoch", "next_step")  # what may differ: where training is


@dataclass(frozen=True, kw_only=True)
class State:
    """Everything that fixes which rows come next: for every rank, and for any world size, from any one rank's state.

    next_step is the first step of the epoch that was not given out. All fields are JSON.
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
        """The state as JSON-able values."""
        return asdict(self)

    def place_of(self, saved: Mapping[str, Any], *, steps: int) -> Self:
        """This state at the saved one's place. StateError, naming the field, if it is of another order of rows.

        steps: how many an epoch has; next_step = steps is the place after the last one.
        """
        names = [field.name for field in fields(self)]
        for name in names:  # what differs is named from the whole to the part: the table before its fingerprint
            if name not in saved:
                raise StateError(
                    f"state: {name} is missing: this is no state of a datacache loader of version {VERSION}"
                )
            if name not in _PLACE and saved[name] != getattr(self, name):
                raise StateError(_mismatch(name, saved[name], getattr(self, name)))
        if unknown := sorted(set(saved) - set(names)):
            raise StateError(f"state: unknown field {unknown[0]}: it was saved by a newer release")
        for name in _PLACE:
            if type(saved[name]) is not int or saved[name] < 0:
                raise StateError(f"state: {name} = {saved[name]!r}: want a whole number of at least 0")
        if saved["next_step"] > steps:
            raise StateError(
                f"state: next_step = {saved['next_step']}: an epoch has {steps} steps, want at most {steps}"
            )
        return type(self)(**saved)


def rescaled(saved: Mapping[str, Any], global_batch: int) -> dict[str, Any]:
    """A saved state as one of the same place under another global batch size: the order of the rows is the same.

    StateError, listing the sizes that do, if no step of that size begins there. What is no state stays as it is.
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
    """Whether a saved place is after its epoch's last step. False for what is no state: whoever uses it refuses it."""
    try:
        order = Epoch(rows=state["rows"], global_batch=state["global_batch_size"], tail=state["tail"])
    except (KeyError, TypeError, ValueError):
        return False
    return 0 < order.steps == state.get("next_step")


def warn_nothing_left(epoch: int) -> None:
    """Warns of an epoch that will be empty, since the loaded state was saved after its last step."""
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
