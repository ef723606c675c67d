# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A loader's position, as saved in checkpoints."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import zip_longest
from typing import Any, Final, Self

from kubeflow_datacache.arguments import check_allow
from kubeflow_datacache.dataset import Dataset
from kubeflow_datacache.errors import StateError
from kubeflow_datacache.order.epoch import Epoch
from kubeflow_datacache.order.mix import Mix, Part

VERSION: Final = 1
_LARGEST: Final = 1 << 16  # largest batch size that an error message suggests
_SHOWN: Final = 8  # number of batch sizes that an error message suggests
_ROWS: Final = ("table_uuid", "snapshot", "filter", "row_filter", "split", "rows", "fingerprint")
_POSITION = ("epoch", "next_step")  # the fields that hold the position; all others must match the loader


class LoaderState:
    """A loader's position, which a saved one is checked against. Subclasses are dataclasses of JSON values."""

    def as_dict(self) -> dict[str, Any]:
        """The state as a dict of JSON-serializable values."""
        return asdict(self)  # pyright: ignore[reportArgumentType, reportCallIssue] - subclasses are dataclasses

    def checked_position(self, saved: Mapping[str, Any], *, steps: int) -> Self:
        """Validates a saved state against this one and returns it. Raises StateError, naming the field, if they do not
        match.

        steps: the number of steps in an epoch; next_step = steps is the position after the last one.
        """
        names = [field.name for field in fields(self)]  # pyright: ignore[reportArgumentType]
        for name in names:  # in field order, so that a different table is reported before its fingerprint
            if name not in saved:
                raise StateError(
                    f"state: {name} is missing: this is no state of a datacache loader of version {VERSION}"
                )
            if name not in _POSITION:
                self._check(name, saved)
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

    def _check(self, name: str, saved: Mapping[str, Any]) -> None:
        """Raises StateError if a saved field differs."""
        _equal(name, saved[name], getattr(self, name))


@dataclass(frozen=True, kw_only=True)
class State(LoaderState):
    """A loader's position, and everything that determines the order of rows. Valid for every rank and any world size.

    next_step is the first step of the epoch that has not been returned.
    """

    version: int = VERSION
    order_version: int
    table_uuid: str
    snapshot: int | str | None
    filter: str
    row_filter: str
    split: dict[str, Any] | None
    rows: int
    fingerprint: str
    seed: int
    shuffle: bool
    clump: int
    window: int
    global_batch_size: int
    tail: str
    epoch: int
    next_step: int


@dataclass(frozen=True, kw_only=True)
class MixState(LoaderState):
    """The state of a mixture's loader. rows is the number of rows of an epoch of the mixture.

    parts: of each part the name, the fields of its dataset, and its weights by phase. phases: rows of each phase but
    the last. Both may differ from those of the loader in what follows the saved position.
    """

    version: int = VERSION
    order_version: int
    parts: list[dict[str, Any]]
    unit: str
    rows: int
    seed: int
    shuffle: bool
    clump: int
    window: int
    global_batch_size: int
    tail: str
    epoch: int
    next_step: int
    phases: list[int]

    @classmethod
    def part(cls, name: str, dataset: Dataset, weights: Sequence[int]) -> dict[str, Any]:
        """An item of parts."""
        return {"name": name, **asdict(dataset), "weights": list(weights)}

    def _check(self, name: str, saved: Mapping[str, Any]) -> None:
        if name == "parts":
            _equal("names of parts", [p.get("name") for p in saved[name]], [p["name"] for p in self.parts])
            for then, now in zip(saved[name], self.parts, strict=True):
                for field in _ROWS:
                    _equal(field, then.get(field), now[field], f" of part {now['name']!r}")
        elif name == "phases":
            self._check_past(saved)
        else:
            super()._check(name, saved)

    def _check_past(self, saved: Mapping[str, Any]) -> None:
        """Raises StateError if phases or weights differ before the saved position."""
        if type(saved["epoch"]) is not int or type(saved["next_step"]) is not int:
            return  # refused as a position
        begun, until = 0, saved["epoch"] * saved["rows"]
        until += min(saved["rows"], saved["next_step"] * saved["global_batch_size"])
        for phase, (then, now) in enumerate(zip_longest([*saved["phases"], None], [*self.phases, None])):
            if phase and begun >= until:
                return
            for theirs, ours in zip(saved["parts"], self.parts, strict=True):
                _equal(
                    f"weights[{phase}]", theirs["weights"][phase], ours["weights"][phase], f" of part {ours['name']!r}"
                )
            ends = [until if draws is None else min(until, begun + draws) for draws in (then, now)]
            if ends[0] != ends[1]:
                raise StateError(
                    f"state: phases[{phase}] = {then!r}, but this loader has {now!r}: phases must be equal up to the"
                    f" saved position, which is after {until} rows; later ones may differ"
                )
            begun = ends[0]
            if then is None or now is None:
                return


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


def another_window(
    saved: Mapping[str, Any], window: int, allow: Sequence[str], begins: bool | None = None
) -> Mapping[str, Any]:
    """Returns a saved state with a window that differs, if allow has "window".

    begins: whether an epoch begins or ends there; None: as next_step says. Raises StateError within an epoch, whose
    order would change.
    """
    if begins is None:
        check_allow(allow, "window")
        begins = saved.get("next_step") == 0 or is_complete(saved)
    if "window" not in allow or saved.get("window") == window:
        return saved
    if not begins:
        raise StateError(
            f"state: window = {saved.get('window')!r}, but this loader has {window!r}, and the state is within an"
            " epoch: windows change between epochs"
        )
    return {**saved, "window": window}


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


def order_of(state: Mapping[str, Any]) -> Epoch:
    """The order of rows in the epoch of a valid state."""
    common: dict[str, Any] = {
        "rows": state["rows"],
        "seed": state["seed"],
        "number": state["epoch"],
        "shuffle": state["shuffle"],
        "clump": state["clump"],
        "window": state["window"],
        "global_batch": state["global_batch_size"],
        "tail": state["tail"],
        "order": state["order_version"],
    }
    if "parts" not in state:
        return Epoch(**common)
    parts = [Part(rows=part["rows"], weights=tuple(part["weights"])) for part in state["parts"]]
    return Mix(**common, parts=tuple(parts), phases=tuple(state["phases"]), unit=state["unit"])


def _equal(name: str, saved: object, here: object, of: str = "") -> None:
    """Raises StateError unless a saved field equals that of the loader. of: what it is a field of."""
    if saved == here:
        return
    text = f"state: {name}{of} = {saved!r}, but this loader has {here!r}"
    if name == "version":
        raise StateError(f"{text}: use the release of kubeflow-datacache that saved it")
    if name == "order_version":
        raise StateError(f"{text}: make the loader with order={saved!r} to go on where it was saved")
    if name in _ROWS:
        fix = "Start the cache with that table, snapshot and filter"
        if name in ("row_filter", "split"):
            fix = f"Select those rows, with {'filter' if name == 'row_filter' else name}="
        raise StateError(f"{text}: it was saved while reading other rows. {fix}, or begin the training anew")
    fix = f"make the loader with {name}={saved!r} to go on where it was saved"
    if name == "window":
        fix += ', or load a state with allow=["window"] where an epoch begins'
    raise StateError(f"{text}: {fix}")


def warn_no_steps(order: Epoch) -> None:
    """Warns that all epochs are empty. Python's warning filter suppresses repetitions."""
    if order.rows:
        why = (
            f"global_batch_size = {order.global_batch} is more than the {order.rows} rows, and"
            f' tail="drop" leaves the incomplete step out: give a global_batch_size of at most {order.rows}, or'
            ' tail="keep" or "pad"'
        )
    else:
        why = "there are no rows: see the filter and snapshot of the cache, and filter= and split= of the loader"
    warnings.warn(f"every epoch of this loader is empty: {why}", stacklevel=3)
