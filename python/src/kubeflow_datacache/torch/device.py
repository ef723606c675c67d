# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Batches on their way to an accelerator, beside what it computes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kubeflow_datacache.torch.batch import Columns


class Moving(NamedTuple):
    """An item that is being copied, and what says that it has arrived; None where it has."""

    item: Any
    arrives: Any


class Mover:
    """Copies items to a device: on CUDA in a stream of its own, beside the kernels of the current one. One thread.

    Copies from page-locked memory go on while the caller does; from other memory they end before start returns.
    """

    def __init__(self, device: torch.device | str) -> None:
        self._device = torch.device(device)
        self._stream = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None

    def start(self, item: Any) -> Moving:
        """Begins to copy an item's tensors."""
        if self._stream is None:
            return Moving(moved(item, self._device), None)
        with torch.cuda.stream(self._stream):
            there = moved(item, self._device, non_blocking=True)
            return Moving(there, self._stream.record_event())

    def finish(self, moving: Moving) -> Any:
        """The item; what the current stream does from now on waits until it has arrived."""
        if moving.arrives is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_event(moving.arrives)
            _used_by(moving.item, current)
        return moving.item


def moved(item: Any, device: torch.device, *, non_blocking: bool = False) -> Any:
    """A copy of an item, a tensor, mapping, list or tuple, whose tensors are on a device; others stay as they are."""
    if isinstance(item, Tensor | Columns):
        return item.to(device, non_blocking=non_blocking)
    if isinstance(item, Mapping):
        return {name: moved(value, device, non_blocking=non_blocking) for name, value in item.items()}
    if isinstance(item, list | tuple):
        parts = [moved(value, device, non_blocking=non_blocking) for value in item]
        return parts if isinstance(item, list) else type(item)(*parts) if hasattr(item, "_fields") else tuple(parts)
    return item


def _used_by(item: Any, stream: Any) -> None:
    """Keeps tensors' memory from being given to others while a stream uses it."""
    if isinstance(item, Tensor):
        if item.is_cuda:
            item.record_stream(stream)
    elif isinstance(item, Mapping):
        for value in item.values():
            _used_by(value, stream)
    elif isinstance(item, list | tuple):
        for value in item:
            _used_by(value, stream)
