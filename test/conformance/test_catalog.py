# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tables by name: the cache looks them up in Apache Iceberg's REST catalog."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from canon import difference, rows_of
from client import Client
from pyiceberg.catalog.rest import RestCatalog
from server import Cache, Mode
from stores import rest_catalog
from tables import plain_rows

from kit.ports import free_port

Connect = Callable[[Cache], Client]


@dataclass(frozen=True)
class Catalog:
    """A running catalog with the tables db.events and db.inner.events."""

    uri: str
    client: RestCatalog

    def source(self, namespace: str, table: str) -> list[str]:
        """The flags that name a table."""
        return ["--catalog-uri", self.uri, "--schema-name", namespace, "--table-name", table]


@pytest.fixture(scope="session")
def catalog(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Catalog]:
    """A catalog with tables that pyiceberg wrote through it."""
    jars = request.config.getoption("--rest-catalog")
    if jars is None:
        pytest.skip("no --rest-catalog given: run 'make test-conformance'")
    with rest_catalog(jars, tmp_path_factory.mktemp("catalog")) as uri:
        client = RestCatalog("tests", uri=uri)
        for i, namespace in enumerate([("db",), ("db", "inner")]):
            client.create_namespace(namespace)
            table = client.create_table((*namespace, "events"), schema=plain_rows(1).schema)
            table.append(plain_rows(300, seed=20 + i))
            table.append(plain_rows(200, seed=20 + i, first=300))
        yield Catalog(uri, client)


@pytest.mark.parametrize("namespace", ["db", "db.inner"])
def test_a_table_by_name(
    namespace: str, mode: Mode, catalog: Catalog, private: Callable[..., Cache], connect: Connect
) -> None:
    cache = private(catalog.source(namespace, "events"), mode=mode)
    status = cache.wait("Ready")
    want = catalog.client.load_table((*namespace.split("."), "events")).scan().to_arrow()
    assert difference(rows_of(connect(cache).table()), rows_of(want)) == ""
    assert namespace in status["table"]
    assert "events" in status["table"]


def test_the_snapshot_is_pinned_at_start(catalog: Catalog, private: Callable[..., Cache], connect: Connect) -> None:
    catalog.client.create_table(("db", "growing"), schema=plain_rows(1).schema).append(plain_rows(10))
    cache = private(catalog.source("db", "growing"))
    cache.wait("Ready")
    catalog.client.load_table(("db", "growing")).append(plain_rows(5, first=10))
    assert connect(cache).table().num_rows == 10
    later = private(catalog.source("db", "growing"))
    later.wait("Ready")
    assert connect(later).table().num_rows == 15


@pytest.mark.parametrize(("namespace", "table"), [("db", "nope"), ("nope", "events")])
def test_what_the_catalog_does_not_have_fails_the_cache_with_its_name(
    namespace: str, table: str, catalog: Catalog, private: Callable[..., Cache]
) -> None:
    reason = private(catalog.source(namespace, table)).wait("Failed")["reason"]
    assert f"{namespace}.{table}" in reason or (namespace in reason and table in reason)


def test_a_catalog_that_is_not_there_fails_the_cache_with_its_address(private: Callable[..., Cache]) -> None:
    uri = f"http://127.0.0.1:{free_port()}"
    cache = private(["--catalog-uri", uri, "--schema-name", "db", "--table-name", "events", "--load-timeout", "3s"])
    assert uri.removeprefix("http://") in cache.wait("Failed")["reason"]
