# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Fixtures: a fake cache in this process (Peer), and real servers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from chance import Chance
from cluster import Cluster
from lake import Lake
from peer import Peer, Table
from seeds import SEED
from wide import wide_table

from kubeflow_datacache import DataCache
from kubeflow_datacache.cache import Transport

pytest_plugins = ["kit.leftovers"]

NOTES = pytest.StashKey[list[str]]()
REPOSITORY = Path(__file__).parents[2]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options for the server under test and the number of random tests."""
    parser.addoption("--server", type=Path, default=REPOSITORY / "bin/cacheserver", help="the cacheserver binary")
    parser.addoption("--rest-catalog", type=Path, default=None, help="the jars of Iceberg's REST catalog (make tools)")
    parser.addoption("--thorough", type=int, default=1, help="times as many random schedules: 10 for a release")
    parser.addoption("--update", action="store_true", help="write golden files anew")
    parser.addoption("--schedule", type=int, default=None, help="the one random schedule to run, by its number")


def pytest_report_header() -> str:
    """The seed with which SEED repeats the run."""
    return f"SEED={SEED}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Prints what the random tests did and how to repeat them."""
    for line in config.stash.get(NOTES, []):
        terminalreporter.write_line(line)


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> Chance:
    """Random schedules."""
    config = request.config
    return Chance(
        thorough=int(str(config.getoption("--thorough"))),
        only=config.getoption("--schedule"),
        notes=config.stash.setdefault(NOTES, []),
    )


@pytest.fixture
def thorough(chance: Chance) -> int:
    """Factor for the number of random cases."""
    return chance.thorough


@pytest.fixture
def rng() -> random.Random:
    """Random numbers."""
    return random.Random(SEED)


@pytest.fixture
def peer() -> Iterator[Peer]:
    """A fake cache in this process: 100 rows on three data nodes."""
    with Peer(Table(100, [(0, 40), (40, 70), (70, 100)])) as one:
        yield one


@pytest.fixture
def connect() -> Iterator[Callable[..., DataCache]]:
    """A function that opens clients; they are closed after the test."""
    opened: list[DataCache] = []

    def open_cache(endpoint: str, retry_seconds: float = 120.0, transport: Transport = "h2") -> DataCache:
        opened.append(DataCache(endpoint, retry_seconds=retry_seconds, transport=transport))
        return opened[-1]

    yield open_cache
    for cache in opened:
        cache.close()


@pytest.fixture
def cache(peer: Peer, connect: Callable[..., DataCache]) -> DataCache:
    """A client of the peer."""
    return connect(peer.endpoint)


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest) -> Path:
    """The cacheserver binary."""
    binary = Path(str(request.config.getoption("--server"))).resolve()
    if not binary.exists():
        pytest.exit(f"{binary} does not exist: run 'make build', or give --server", returncode=2)
    return binary


@pytest.fixture(scope="session")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The metadata file of an Iceberg table of 60,000 rows of about 2 KB (wide.py)."""
    return wide_table(Lake(tmp_path_factory.mktemp("lake")))


@pytest.fixture
def cluster(server: Path, table: str, tmp_path: Path) -> Iterator[Cluster]:
    """A head and two data nodes as separate processes, which have loaded the table."""
    with Cluster(server, table, tmp_path) as servers:
        servers.wait_ready()
        yield servers
