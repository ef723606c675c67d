# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Fixtures for conftest.py that fail tests whose processes are left over."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kit.process import lasting, require_none_left


@pytest.fixture(scope="session", autouse=True)
def nothing_runs_after_the_session() -> Iterator[None]:
    """Fails the session if it leaves a process over."""
    yield
    require_none_left("the session")


@pytest.fixture(scope="module", autouse=True)
def nothing_runs_after_the_module(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a module that leaves a process over, but for those of fixtures of the session."""
    yield
    require_none_left(request.node.name, lasting)
