# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Broadcasts the batches that one rank reads to ranks that train on the same rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist

from kubeflow_datacache.torch.packing import pack, unpack


def broadcast(batches: Iterable[Mapping[Any, Any]] | None, group: Any = None) -> Iterator[Any]:
    """Yields the batches of the group's first rank on all its ranks, so that ranks with parts of one model read only
    once.

    batches: on the group's first rank, mappings of columns, such as those of a StreamingDataLoader; None on the others.
    group: a process group, such as mesh["tensor"].get_group(); None for all ranks. All its ranks must iterate in step.
    Yields mappings of the same class. An error on the first rank is raised on all ranks.

    Each step costs one broadcast of its bytes, about batch bytes / bandwidth between the ranks, two collective calls,
    and the wait for the slowest rank. Reading on every rank needs no waiting, but multiplies the bytes from the cache
    by the number of ranks. With NCCL, tensors arrive on the current CUDA device, with gloo on the CPU.
    """
    first = dist.get_process_group_ranks(group or dist.group.WORLD)[0]
    device = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend(group) == "nccl" else None
    source = iter(batches) if batches is not None else None
    if (source is not None) != (dist.get_rank() == first):
        raise ValueError(f"batches: want them in rank {first}, the group's first, and None in the others")
    while True:
        memory, head = _next(source) if source is not None else (None, None)
        shared: list[Any] = [head]
        dist.broadcast_object_list(shared, src=first, group=group, device=device)
        if shared[0] is None:
            return
        if isinstance(shared[0], Exception):
            raise shared[0]
        kind, size, layout, metadata = shared[0]
        memory = torch.empty(size, dtype=torch.uint8) if memory is None else memory
        memory = memory if device is None else memory.to(device)
        if size:
            dist.broadcast(memory, src=first, group=group)
        yield kind(unpack(memory, layout), **metadata)


def _next(source: Iterator[Mapping[Any, Any]]) -> tuple[Any, Any]:
    """The next batch in one block of memory, and its header for the other ranks; None for both at the end."""
    try:
        batch = next(source, None)
    except Exception as error:
        return None, error
    if batch is None:
        return None, None
    memory, layout = pack(batch)
    metadata = getattr(batch, "metadata", dict)()
    return memory, (type(batch) if metadata else dict, memory.numel(), layout, metadata)
