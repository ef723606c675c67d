# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""World: this process's rank, and the number of ranks in the training job."""

from __future__ import annotations

import functools
import math
import operator
import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

from kubeflow_datacache.arguments import check_int


@dataclass(frozen=True)
class World:
    """Rank `rank` of `size` ranks, 0 <= rank < size. The size may exceed the batch size.

    replicas: how many processes of this container are this rank, such as those with parts of one model. local: how many
    ranks are in this container, with consecutive numbers of which the first is a multiple of local, and each with as
    many replicas. 0 if that is not known. Both are for the loader's option host; worlds that differ in them alone are
    equal.
    """

    rank: int = 0
    size: int = 1
    replicas: int = field(default=0, compare=False, repr=False)
    local: int = field(default=0, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("rank", "size", "replicas", "local"):  # accepts numpy integers
            value = getattr(self, name)
            try:
                object.__setattr__(self, name, operator.index(value))
            except TypeError:
                raise TypeError(f"World: {name} = {value!r}: want a whole number") from None
        if self.size < 1:
            raise ValueError(f"world size = {self.size}: want at least 1")
        if self.replicas < 0:
            raise ValueError(f"World: replicas = {self.replicas}: want at least 0")
        if self.local < 0 or (self.local and self.size % self.local):
            raise ValueError(f"World: local = {self.local}: want a divisor of size = {self.size}, or 0")
        if not 0 <= self.rank < self.size:
            raise ValueError(f"rank = {self.rank} is outside the world of {self.size}: want 0 <= rank < {self.size}")

    @classmethod
    def detect(cls) -> Self:
        """Detects rank and world size of this process.

        From torch.distributed, else from jax.distributed, if it is initialized in this process, else from the variables
        of launchers: RANK and WORLD_SIZE (torchrun), JAX_PROCESS_ID and JAX_NUM_PROCESSES (Kubeflow Trainer for JAX),
        OMPI_COMM_WORLD_RANK and _SIZE (Open MPI), SLURM_PROCID and SLURM_STEP_NUM_TASKS (srun); else a world of one.
        Raises ValueError if only a rank or only a size is set, as guessing rank 0 could be wrong. torch and jax are
        used only if the program has already imported them.
        """
        distributed = getattr(sys.modules.get("torch"), "distributed", None)
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return cls(distributed.get_rank(), distributed.get_world_size())
        jax = sys.modules.get("jax")
        if jax is not None and jax.distributed.is_initialized():
            return cls(jax.process_index(), jax.process_count())
        for rank_name, size_name in _LAUNCHERS:
            rank, size = _number(rank_name), _number(size_name)
            if rank is None and (size is None or size == 1):
                continue
            if rank is None or size is None or not 0 <= rank < size:
                raise ValueError(
                    f"environment variables {rank_name} = {_shown(rank)} and {size_name} = {_shown(size)}: want"
                    f" 0 <= {rank_name} < {size_name}. Start the script with a launcher that sets both, such as"
                    " torchrun, or give the loader world=World(rank, size)"
                )
            return cls(rank, size)
        for name in _ALONE:
            if _number(name) is not None:
                raise ValueError(
                    f"environment variable {name} is set without RANK and WORLD_SIZE: it does not tell which of all"
                    " ranks this is. Set both, or give the loader world=World(rank, size)"
                )
        return cls()

    @classmethod
    def of_group(cls, group: Any) -> Self:
        """This process's rank and size in a torch.distributed process group, all of whose ranks must read different
        rows."""
        import torch.distributed as distributed

        return cls(distributed.get_rank(group), distributed.get_world_size(group))

    @classmethod
    def of_mesh(cls, mesh: Any, *dimensions: str) -> Self:
        """This process's rank along the data-parallel dimensions of a torch DeviceMesh; the first dimension varies
        slowest.

        With tensor or pipeline parallelism, several ranks hold parts of one model and must read the same rows. Their
        ranks along the data-parallel dimensions are equal, although their global ranks, which detect() returns, differ.
        replicas and local are known where the launcher tells how many ranks each host has, as torchrun does.
        """
        if not dimensions:
            raise ValueError(f"of_mesh: name the data-parallel dimensions of the mesh {mesh.mesh_dim_names}")
        rank, size = 0, 1
        for name in dimensions:
            if name not in (mesh.mesh_dim_names or ()):
                raise ValueError(f"of_mesh: {name!r} is no dimension of the mesh {mesh.mesh_dim_names}")
            along = mesh[name]
            rank, size = rank * along.size() + along.get_local_rank(), size * along.size()
        return cls(rank, size, *_here_in(mesh, dimensions))

    def replicas_here(self) -> int:
        """replicas, or if it is not known, how many there are if as many as possible are on this host; at least 1."""
        if self.replicas:
            return self.replicas
        try:
            ranks = type(self).detect().size
        except ValueError:  # the environment makes no sense, and this world was given
            return 1
        return max(1, min(_local_size() or 1, ranks // self.size))

    def local_here(self) -> int:
        """local, or if it is not known, the number of ranks that the launcher started in this container, if these are
        as local says; otherwise 1."""
        if self.local:
            return self.local
        size, place = _number("LOCAL_WORLD_SIZE") or 1, _number("LOCAL_RANK")
        try:
            each = type(self).detect().size == self.size  # otherwise some processes are one rank
        except ValueError:
            return 1
        return size if each and self.size % size == 0 and self.rank % size == place else 1


def check_resize(world: Any, step: Any, steps: int) -> tuple[int, int] | None:
    """The epoch and the step in it of a resize, None if step is None. Raises TypeError or ValueError."""
    if not isinstance(world, World):
        raise TypeError(f"world = {world!r}: want World(rank, size)")
    return None if step is None else divmod(check_int("step", step, 0, 1 << 62), max(1, steps))


# Variables with the rank and the world size, by launcher, in the order in which they are tried.
_LAUNCHERS: Final = (
    ("RANK", "WORLD_SIZE"),
    ("JAX_PROCESS_ID", "JAX_NUM_PROCESSES"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
# Variables with the number of ranks on this host.
_LOCAL: Final = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")
# Variables of launchers that give a local rank only, if the global rank is not set.
_ALONE: Final = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")


def _number(name: str) -> int | None:
    text = os.environ.get(name, "")
    try:
        return int(text) if text else None
    except ValueError:
        raise ValueError(f"environment variable {name} = {text!r}: want a whole number") from None


def _local_size() -> int:
    """The number of ranks on this host; 0 if it is not known."""
    return next((size for name in _LOCAL if (size := _number(name))), 0)


def _here_in(mesh: Any, dimensions: Sequence[str]) -> tuple[int, int]:
    """replicas and local of this process along the dimensions of a mesh; 0 if they are not known."""
    import torch.distributed as distributed

    count = _local_size()
    if not count or mesh.mesh.numel() != distributed.get_world_size():
        return 0, 0
    first, own = distributed.get_rank() // count * count, distributed.get_rank()
    places = {rank: _place_in(mesh, dimensions, rank) for rank in range(first, min(first + count, mesh.mesh.numel()))}
    replicas, ranks = Counter(places.values()), sorted(set(places.values()))
    alike = len(set(replicas.values())) == 1 and ranks[-1] - ranks[0] == len(ranks) - 1
    size = math.prod(mesh[name].size() for name in dimensions)
    return replicas[places[own]], len(ranks) if alike and ranks[0] % len(ranks) == size % len(ranks) == 0 else 1


def _place_in(mesh: Any, dimensions: Sequence[str], rank: int) -> int:
    """The place of a global rank along the dimensions of a mesh."""
    at = dict(zip(mesh.mesh_dim_names, (mesh.mesh == rank).nonzero()[0].tolist(), strict=True))
    return functools.reduce(lambda place, name: place * mesh[name].size() + at[name], dimensions, 0)


def _shown(value: int | None) -> str:
    return "(not set)" if value is None else str(value)
