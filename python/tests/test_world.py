# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Detection of rank and world size in training environments."""

from __future__ import annotations

import os
import re
import sys
import types
from typing import Any

import pytest
from peer import Peer, Table

from kubeflow_datacache import World


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in os.environ if re.match("RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|JAX_|OMPI_|SLURM_", n)]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.delitem(sys.modules, "jax", raising=False)


def test_a_process_without_a_launcher() -> None:
    assert World.detect() == World(0, 1)


def test_torchruns_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert World.detect() == World(3, 8)


def test_torch_distributed_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "8")
    torch = types.SimpleNamespace(
        distributed=types.SimpleNamespace(
            is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: 1, get_world_size=lambda: 2
        )
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert World.detect() == World(1, 2)


@pytest.mark.parametrize(("initialized", "world"), [(True, World(1, 2)), (False, World(3, 8))])
def test_jax_distributed_comes_before_launchers(
    initialized: bool, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_PROCESS_ID", "3")
    monkeypatch.setenv("JAX_NUM_PROCESSES", "8")
    jax = types.SimpleNamespace(
        distributed=types.SimpleNamespace(is_initialized=lambda: initialized),
        process_index=lambda: 1,
        process_count=lambda: 2,
    )
    monkeypatch.setitem(sys.modules, "jax", jax)
    assert World.detect() == world


def test_an_environment_that_makes_no_sense(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "one")
    with pytest.raises(ValueError, match="RANK = 'one': want a whole number"):
        World.detect()
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="RANK = 2 and WORLD_SIZE = 2: want 0 <= RANK < WORLD_SIZE"):
        World.detect()


@pytest.mark.parametrize(
    ("environment", "world"),
    [
        ({"WORLD_SIZE": "1"}, World(0, 1)),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}, World(2, 4)),
        ({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "8"}, World(3, 4)),
        ({"RANK": "0", "WORLD_SIZE": "2", "SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4"}, World(0, 2)),
    ],
)
def test_launchers(environment: dict[str, str], world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert World.detect() == world


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"WORLD_SIZE": "2"}, r"RANK = \(not set\) and WORLD_SIZE = 2: .* give the loader world=World\(rank, size\)"),
        ({"RANK": "0"}, r"RANK = 0 and WORLD_SIZE = \(not set\)"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, r"OMPI_COMM_WORLD_RANK = \(not set\)"),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, r"SLURM_PROCID = 0 and SLURM_STEP_NUM_TASKS = \(not set\)"),
        ({"LOCAL_RANK": "0"}, "LOCAL_RANK is set without RANK and WORLD_SIZE"),
    ],
)
def test_a_rank_or_a_size_alone_is_an_error(
    environment: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message):
        World.detect()


def test_a_loader_looks_when_its_iteration_begins(connect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with Peer(Table(12, [(0, 12)])) as peer:
        loader = connect(peer.endpoint).loader(global_batch_size=4, shuffle=False)
        monkeypatch.setenv("RANK", "1")  # as init_process_group would
        monkeypatch.setenv("WORLD_SIZE", "2")
        assert [batch.numpy()["id"].tolist() for batch in loader] == [[2, 3], [6, 7], [10, 11]]


@pytest.mark.parametrize(
    ("world", "environment", "replicas"),
    [
        (World(1, 2, replicas=3), {}, 3),
        (World(1, 2), {}, 1),
        (World(1, 2), {"RANK": "5", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}, 8),
        (World(1, 2), {"RANK": "5", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "4"}, 4),
        (World(5, 16), {"RANK": "5", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}, 1),
        (World(1, 2), {"RANK": "5", "WORLD_SIZE": "16"}, 1),
        (World(1, 2), {"RANK": "5"}, 1),
        (World(1, 2), {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, 4),
    ],
)
def test_how_many_ranks_of_this_host_are_one(
    world: World, environment: dict[str, str], replicas: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert world.replicas_here() == replicas
    assert world == World(world.rank, world.size)


@pytest.mark.parametrize(("rank", "size"), [(0, 0), (-1, 2), (2, 2)])
def test_invalid_worlds(rank: int, size: int) -> None:
    with pytest.raises(ValueError, match="want"):
        World(rank, size)
