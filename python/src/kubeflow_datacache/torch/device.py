# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Copies batches to an accelerator while it computes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kubeflow_datacache.torch.batch import Columns


class PendingCopy(NamedTuple):
    """An item that is being copied, and the CUDA event that marks the end of the copy; None if the copy is complete."""

    item: Any
    arrived: Any


class DeviceCopier:
    """Copies items to a device. On CUDA it uses a stream of its own, in parallel with the current stream. For one
    thread.

    Copies from page-locked memory are asynchronous; copies from other memory are complete when start returns.
    """

    def __init__(self, device: torch.device | str) -> None:
        self._device = torch.device(device)
        self._stream = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None

    def start(self, item: Any) -> PendingCopy:
        """Starts to copy the tensors of an item."""
        if self._stream is None:
            return PendingCopy(to_device(item, self._device), None)
        with torch.cuda.stream(self._stream):
            there = to_device(item, self._device, non_blocking=True)
            return PendingCopy(there, self._stream.record_event())

    def finish(self, pending: PendingCopy) -> Any:
        """Returns the copied item. Later work in the current stream waits for the copy."""
        if pending.arrived is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_event(pending.arrived)
            _record_use(pending.item, current)
        return pending.item


def to_device(item: Any, device: torch.device, *, non_blocking: bool = False) -> Any:
    """Copies the tensors in an item (tensor, mapping, list or tuple) to a device; other values stay the same."""
    if isinstance(item, Tensor | Columns):
        return item.to(device, non_blocking=non_blocking)
    if isinstance(item, Mapping):
        return {name: to_device(value, device, non_blocking=non_blocking) for name, value in item.items()}
    if isinstance(item, list | tuple):
        parts = [to_device(value, device, non_blocking=non_blocking) for value in item]
        return parts if isinstance(item, list) else type(item)(*parts) if hasattr(item, "_fields") else tuple(parts)
    return item


def _record_use(item: Any, stream: Any) -> None:
    """Records that a stream uses the tensors, so that their memory is not reused before it is done."""
    if isinstance(item, Tensor):
        if item.is_cuda:
            item.record_stream(stream)
    elif isinstance(item, Mapping):
        for value in item.values():
            _record_use(value, stream)
    elif isinstance(item, list | tuple):
        for value in item:
            _record_use(value, stream)
