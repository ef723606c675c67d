# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Fixtures: the binary under test, the lakehouse, the caches."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from client import Client
from lake import Lake, Made
from seeds import SEED
from server import MODES, WIRE_MODES, Cache, Caches, Mode
from tables import BY_NAME

pytest_plugins = ["kit.leftovers"]


REPOSITORY = Path(__file__).parents[2]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options for the programs that the tests start."""
    parser.addoption("--server", type=Path, default=REPOSITORY / "bin/cacheserver", help="the cacheserver binary")
    parser.addoption("--minio", type=Path, default=None, help="a MinIO binary (make tools builds one)")
    parser.addoption("--rest-catalog", type=Path, default=None, help="the jars of Iceberg's REST catalog (make tools)")
    parser.addoption("--java-flight", type=Path, default=None, help="the jars of Arrow's Java client (make tools)")
    parser.addoption("--pruning", type=int, default=1, help="tables of each type and transform for test_pruning")
    parser.addoption("--folders", type=int, default=3, help="folders of each writer for test_random_folders")
    parser.addoption("--spark-jars", type=Path, default=None, help="the jar of Iceberg for Spark (make tools)")


def pytest_report_header() -> str:
    """The seed with which SEED repeats the run."""
    return f"SEED={SEED}"


@pytest.fixture(scope="session")
def caches(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Caches]:
    """Starts and shares the caches under test."""
    given: Path = request.config.getoption("--server")  # pyright: ignore[reportAssignmentType]
    binary = given.resolve()
    if not binary.exists():
        pytest.exit(f"{binary} does not exist: run 'make build', or 'make test-conformance'", returncode=2)
    pool = Caches(binary, tmp_path_factory.mktemp("caches"))
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """The lakehouse on the local disk."""
    return Lake(tmp_path_factory.mktemp("lake"))


@pytest.fixture(scope="session")
def table(lake: Lake) -> Callable[[str], Made]:
    """A function that returns a table by its name in tables.py."""
    return lambda name: lake.table(name, BY_NAME[name])


# Test modules that also run against the grpc-go transport, as they check bytes on the wire; rows do not depend on it.
# All messages are those of test_wire, so that the gate needs no more of them than that module.
_ON_EVERY_TRANSPORT = ("test_wire", "test_tls")
_ON_EVERY_TRANSPORT_BY_NIGHT = ("test_tickets", "test_readers", "test_puts")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrizes tests that use the fixtures `mode`, and `writer` with `folder_number`."""
    if "folder_number" in metafunc.fixturenames:
        folders: int = metafunc.config.getoption("--folders")  # pyright: ignore[reportAssignmentType]
        metafunc.parametrize("folder_number", range(folders))
        others = ("polars", "spark", "datasets") if "DATACACHE_FOLDERS_PYTHON" in os.environ else ()
        metafunc.parametrize("writer", ("pyarrow", "duckdb", *others))
    if "mode" in metafunc.fixturenames:
        modes, module = MODES, metafunc.definition.path.stem
        if module in _ON_EVERY_TRANSPORT:
            modes = WIRE_MODES
        if module in _ON_EVERY_TRANSPORT_BY_NIGHT:
            others = [mode for mode in WIRE_MODES if mode not in MODES]
            modes = [*MODES, *(pytest.param(mode, marks=pytest.mark.night) for mode in others)]
        metafunc.parametrize("mode", modes, indirect=True, scope="session")


@pytest.fixture(scope="session")
def mode(request: pytest.FixtureRequest) -> Mode:
    """How the cache runs: in one process, in several, or with the grpc-go transport."""
    return request.param


@pytest.fixture(scope="session")
def golden() -> Path:
    """The folder of the golden files."""
    return REPOSITORY / "test/golden"


@pytest.fixture
def private(caches: Caches) -> Iterator[Callable[..., Cache]]:
    """A function that starts caches for one test; they are stopped after it."""
    started: list[Cache] = []

    def start(*args: object, **kwargs: object) -> Cache:
        started.append(caches.start(*args, **kwargs))  # pyright: ignore[reportArgumentType]
        return started[-1]

    yield start
    for cache in started:
        cache.stop()


@pytest.fixture
def connect() -> Iterator[Callable[[Cache], Client]]:
    """A function that opens clients; they are closed after the test."""
    clients: list[Client] = []

    def open_client(cache: Cache) -> Client:
        clients.append(cache.client())
        return clients[-1]

    yield open_client
    for client in clients:
        client.close()
