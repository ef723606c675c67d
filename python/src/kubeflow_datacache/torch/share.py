# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Batches that one rank reads, for all ranks that train on the same rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist

from kubeflow_datacache.torch.memory import pack, unpack


def broadcast(batches: Iterable[Mapping[Any, Any]] | None, group: Any = None) -> Iterator[Any]:
    """The batches of the group's first rank, on every rank of it: those that hold parts of one model read once.

    batches: mappings of columns, as a StreamingDataLoader gives them, in the group's first rank, and None in the
    others. group: a process group, such as mesh["tensor"].get_group(); None for all ranks. All ranks of it must iterate
    alike. Yields mappings of the same class; an error of the first rank is raised in all.

    Costs a step the way of its bytes through the group once, about batch bytes / bandwidth between the ranks, two
    collective calls, and that the ranks wait for each other; reading on every rank costs the cache and the network as
    many times the bytes as there are ranks in the group, and no waiting. Over NCCL tensors arrive on the current CUDA
    device, over gloo on the CPU.
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
        kind, size, layout, place = shared[0]
        memory = torch.empty(size, dtype=torch.uint8) if memory is None else memory
        memory = memory if device is None else memory.to(device)
        if size:
            dist.broadcast(memory, src=first, group=group)
        yield kind(unpack(memory, layout), **place)


def _next(source: Iterator[Mapping[Any, Any]]) -> tuple[Any, Any]:
    """The next batch in one piece, and what the others must know of it; None at the end."""
    try:
        batch = next(source, None)
    except Exception as error:
        return None, error
    if batch is None:
        return None, None
    memory, layout = pack(batch)
    place = getattr(batch, "place", dict)()
    return memory, (type(batch) if place else dict, memory.numel(), layout, place)
