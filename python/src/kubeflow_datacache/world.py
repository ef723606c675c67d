# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Who reads: this process's rank among all ranks of the training job."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True)
class World:
    """Rank `rank` of `size` ranks, 0 <= rank < size. Any size is good, also one above the batch size."""

    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"world size = {self.size}: want at least 1")
        if not 0 <= self.rank < self.size:
            raise ValueError(f"rank = {self.rank} is outside the world of {self.size}: want 0 <= rank < {self.size}")

    @classmethod
    def detect(cls) -> Self:
        """The world as this process finds it.

        torch.distributed where the process has initialised it, else RANK and WORLD_SIZE as torchrun sets them,
        else a world of one. torch is looked at only if the program has imported it already.
        """
        distributed = getattr(sys.modules.get("torch"), "distributed", None)
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return cls(distributed.get_rank(), distributed.get_world_size())
        rank, size = _number("RANK", 0), _number("WORLD_SIZE", 1)
        if not 0 <= rank < size:
            raise ValueError(
                f"environment variables RANK = {rank} and WORLD_SIZE = {size}: want 0 <= RANK < WORLD_SIZE. Start the"
                " script with torchrun, which sets both, or give the loader world=World(rank, size)"
            )
        return cls(rank, size)


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    try:
        return int(text) if text else default
    except ValueError:
        raise ValueError(f"environment variable {name} = {text!r}: want a whole number") from None
