# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments, which raise TypeError or ValueError naming the parameter and its value."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, SupportsIndex, cast

import numpy as np


def check_int(name: str, value: Any, low: int, limit: int | None = None, of: str = "") -> int:
    """Returns value as an int in [low, limit). Raises TypeError or ValueError naming the parameter; `of` names the
    limit."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, SupportsIndex):
        raise TypeError(f"{name} = {value!r}: want a whole number, not {type(value).__name__}")
    number = operator.index(value)
    if number < low or (limit is not None and number >= limit):
        most = f" and less than {of or _power(limit)}" if limit is not None else ""
        raise ValueError(f"{name} = {number}: want at least {low}{most}")
    return number


def check_bool(name: str, value: Any) -> bool:
    """Returns value as a bool."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} = {value!r}: want True or False")
    return bool(value)


def check_text(name: str, value: Any) -> str:
    """Returns value as a str."""
    if not isinstance(value, str):
        raise TypeError(f"{name} = {value!r}: want text, not {type(value).__name__}")
    return value


def check_choice(name: str, value: Any, *choices: str) -> Any:
    """Returns one of some texts."""
    if value not in choices:
        raise ValueError(f"{name} = {value!r}: want {' or '.join(map(repr, choices))}")
    return value


def check_list(name: str, values: Any, of: str) -> list[Any]:
    """Returns a list of something."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise TypeError(f"{name} = {values!r}: want a list of {of}")
    return list(cast("Iterable[Any]", values))


def check_mapping(name: str, value: Any, example: str) -> None:
    """Raises TypeError for what is no mapping."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} = {value!r}: want a dict, as {example}")


def check_path(name: str, value: Any) -> str:
    """Returns a path as text."""
    if not isinstance(value, str | os.PathLike) or not (path := os.fspath(cast("str | os.PathLike[str]", value))):
        raise TypeError(f"{name} = {value!r}: want a path")
    return path


def check_cache(cache: Any) -> None:
    """Raises TypeError for what is no DataCache."""
    if not hasattr(cache, "act"):
        raise TypeError(f'cache = {cache!r}: want a DataCache, as DataCache("grpc://HOST:50051")')


def check_seconds(name: str, value: Any) -> float:
    """Returns a number of seconds of at least 0."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise TypeError(f"{name} = {value!r}: want a number of seconds, not {type(value).__name__}")
    if not value >= 0:
        raise ValueError(f"{name} = {value!r}: want at least 0")
    return float(value)


def check_state(state: Any) -> None:
    """Raises TypeError for what cannot be a loader's state."""
    if not isinstance(state, Mapping):
        raise TypeError(f"state = {state!r}: want what state_dict() of a loader returned, not {type(state).__name__}")


def check_allow(allow: Any, *choices: str) -> None:
    """Raises ValueError for an allow= of load_state_dict that is no list of some of the choices."""
    if not isinstance(allow, Sequence) or isinstance(allow, str | bytes) or not all(each in choices for each in allow):
        raise ValueError(f"allow = {allow!r}: want a list of {' and '.join(map(repr, choices))}, or []")


def column_names(columns: Any) -> list[str] | None:
    """Returns the column names as a list; None, for all columns, stays None. Raises TypeError or ValueError for
    anything else."""
    if columns is None:
        return None
    if isinstance(columns, str):
        raise TypeError(f"columns = {columns!r}: want a list of names, as [{columns!r}]")
    try:
        names = list(columns)
    except TypeError:
        raise TypeError(f"columns = {columns!r}: want a list of names, or None for all") from None
    for at, name in enumerate(names):
        if not isinstance(name, str):
            raise TypeError(f"columns[{at}] = {name!r}: want the name of a column, not {type(name).__name__}")
        if name in names[:at]:
            raise ValueError(f"columns names {name!r} twice: want each column once")
    if not names:
        raise ValueError("columns is empty: want at least one name, or None for all")
    return [str(name) for name in names]


def check_callable(transform: Any, name: str = "transform", *, required: bool = False) -> Any:
    """Returns the transform, or None unless it is required. Raises TypeError if it is not callable."""
    if (required or transform is not None) and not callable(transform):
        raise TypeError(f"{name} = {transform!r}: want a function of an Arrow record batch")
    return transform


def _power(limit: int | None) -> str:
    return f"2^{limit.bit_length() - 1}" if limit is not None and limit.bit_count() == 1 else str(limit)


def length_of(name: str) -> str | None:
    """The column whose lengths a name of columns= means, such as "length(tokens)"; None for other names."""
    return name[len("length(") : -1] if name.startswith("length(") and name.endswith(")") else None
