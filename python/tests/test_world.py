# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rank and world size, as training environments tell them."""

from __future__ import annotations

import sys
import types

import pytest

from kubeflow_datacache import World


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delitem(sys.modules, "torch", raising=False)


def test_a_process_by_itself() -> None:
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


def test_an_environment_that_makes_no_sense(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "one")
    with pytest.raises(ValueError, match="RANK = 'one': want a whole number"):
        World.detect()
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(
        ValueError, match=r"RANK = 1 and WORLD_SIZE = 1: want 0 <= RANK < WORLD_SIZE. Start the script with torchrun"
    ):
        World.detect()


@pytest.mark.parametrize(("rank", "size"), [(0, 0), (-1, 2), (2, 2)])
def test_no_such_world(rank: int, size: int) -> None:
    with pytest.raises(ValueError, match="want"):
        World(rank, size)
