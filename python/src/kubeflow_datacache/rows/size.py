# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Estimates the memory of any value that a transform may return."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any, Final

_SAMPLE: Final = 32  # number of elements of a long sequence that are measured
_DEEP: Final = 6  # maximum depth of nested containers


def memory_of(value: Any, deep: int = _DEEP) -> int:
    """Estimated bytes of a value: nbytes for arrays and tensors, and for containers the sum of their elements.

    Measures only a sample of a long sequence. Counts only the Python object for data on other devices and for extension
    objects that do not report their size.
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
    measured = [memory_of(element, deep - 1) for element in elements[::stride]]
    return sum(measured) * len(elements) // max(1, len(measured))


def _nbytes(value: Any) -> int | None:
    """nbytes of numpy, torch, Arrow and pandas objects, 0 for a tensor on another device; None for other values."""
    device = getattr(getattr(value, "device", None), "type", "cpu")
    nbytes = getattr(value, "nbytes", None)
    if isinstance(nbytes, int):
        return nbytes if device == "cpu" else 0
    return None
