# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Packs the columns of a batch into one block of shared memory, so that processes exchange one descriptor.

torch sends each tensor in a shared-memory file of its own, which for small tensors costs more than copying them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
import torch
from torch import Tensor

from kubeflow_datacache.torch.segments import shared_memory

_ALIGN: Final = 64
Layout = list[tuple[Any, tuple[torch.dtype, torch.Size, int] | None, Any]]


def pack(columns: Mapping[Any, Any]) -> tuple[Tensor, Layout]:
    """Copies the CPU tensors of a batch into one block of shared memory.

    Returns the block, and a layout with the place of each tensor and all other values.
    """
    layout: Layout = []
    end = 0
    for key, value in columns.items():
        if isinstance(value, Tensor) and value.device.type == "cpu" and value.layout == torch.strided:
            layout.append((key, (value.dtype, value.shape, end), None))
            end += -(-value.nbytes // _ALIGN) * _ALIGN
        else:
            layout.append((key, None, _compact(value)))
    memory = shared_memory(end)
    for key, place, _ in layout:
        if place is not None:
            _at(memory, *place).copy_(columns[key])
    return memory, layout


def unpack(memory: Tensor, layout: Layout) -> dict[Any, Any]:
    """Restores the packed columns as views of the memory."""
    return {key: value if place is None else _at(memory, *place) for key, place, value in layout}


def _at(memory: Tensor, dtype: torch.dtype, shape: torch.Size, begin: int) -> Tensor:
    return memory[begin : begin + shape.numel() * dtype.itemsize].view(dtype).view(shape)


def _compact(value: Any) -> Any:
    """Copies an Arrow array that is a slice: pickle would send the whole array."""
    return pa.concat_arrays([value]) if isinstance(value, pa.Array) else value
