# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""How much memory a value holds, about: for what transforms give, which may be anything."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any, Final

_SAMPLE: Final = 32  # elements of a long sequence that stand for all of it
_DEEP: Final = 6  # levels of containers that are looked into


def held(value: Any, deep: int = _DEEP) -> int:
    """Bytes that a value keeps in memory: arrays and tensors by their nbytes, containers with what is in them.

    Of long sequences a sample is measured. What lies on another device, or in extension objects that don't tell, is
    counted as the object alone.
    """
    if (nbytes := _nbytes(value)) is not None:
        return nbytes
    own = sys.getsizeof(value, 0)
    if not deep or isinstance(value, str | bytes | bytearray | int | float | bool | type(None)):
        return own
    if isinstance(value, Mapping):
        return own + _of_all(value.values(), deep)
    if isinstance(value, list | tuple | set | frozenset):
        return own + _of_all(value, deep)
    return own + (_of_all(vars(value).values(), deep) if hasattr(value, "__dict__") else 0)


def _of_all(values: Iterable[Any], deep: int) -> int:
    elements = list(values)
    stride = max(1, len(elements) // _SAMPLE)
    measured = [held(element, deep - 1) for element in elements[::stride]]
    return sum(measured) * len(elements) // max(1, len(measured))


def _nbytes(value: Any) -> int | None:
    """What numpy, torch, Arrow and pandas say; None for others, and 0 for a tensor that is not in this memory."""
    device = getattr(getattr(value, "device", None), "type", "cpu")
    nbytes = getattr(value, "nbytes", None)
    if isinstance(nbytes, int):
        return nbytes if device == "cpu" else 0
    return None
