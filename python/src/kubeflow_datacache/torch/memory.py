# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Columns as one piece of shared memory: processes pass on a descriptor, not the bytes.

torch sends every tensor as a shared-memory file of its own: for small tensors that costs more than their bytes do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
import torch
from torch import Tensor

from kubeflow_datacache.torch.segments import shared

_ALIGN: Final = 64
Layout = list[tuple[Any, tuple[torch.dtype, torch.Size, int] | None, Any]]


def pack(columns: Mapping[Any, Any]) -> tuple[Tensor, Layout]:
    """CPU tensors of a batch in one piece of shared memory, and where each lies; other values stay beside it."""
    layout: Layout = []
    end = 0
    for key, value in columns.items():
        if isinstance(value, Tensor) and value.device.type == "cpu" and value.layout == torch.strided:
            layout.append((key, (value.dtype, value.shape, end), None))
            end += -(-value.nbytes // _ALIGN) * _ALIGN
        else:
            layout.append((key, None, _alone(value)))
    memory = shared(end)
    for key, place, _ in layout:
        if place is not None:
            _at(memory, *place).copy_(columns[key])
    return memory, layout


def unpack(memory: Tensor, layout: Layout) -> dict[Any, Any]:
    """The columns that pack packed, over the same memory."""
    return {key: value if place is None else _at(memory, *place) for key, place, value in layout}


def _at(memory: Tensor, dtype: torch.dtype, shape: torch.Size, begin: int) -> Tensor:
    return memory[begin : begin + shape.numel() * dtype.itemsize].view(dtype).view(shape)


def _alone(value: Any) -> Any:
    """An Arrow array without the rows around it, which pickle would send along."""
    return pa.concat_arrays([value]) if isinstance(value, pa.Array) else value
