# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Commits while data nodes and head are killed and the catalog loses answers: each is one snapshot."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from chance import Chance
from kit.deadline import limit
from pyiceberg.catalog.rest import RestCatalog
from server import Cache, Caches

from catalog_proxy import FAULTS, Proxy, killing
from kubeflow_datacache import Committed, DataCache, RefusedError, commit, put
from stores import rest_catalog

KILLS = 4  # 100 with make test-loader PYTEST='-k commit_kills --thorough 25'
ROWS = 2000
SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])


def rows_of(version: int) -> pa.Table:
    """The rows of a dataset."""
    ids = range(version * ROWS, (version + 1) * ROWS)
    return pa.table({"id": ids, "text": [f"row {i}" for i in ids]}, SCHEMA)


@pytest.fixture
def proxy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Proxy]:
    """A catalog behind a proxy."""
    jars = request.config.getoption("--rest-catalog")
    if jars is None:
        pytest.skip("no --rest-catalog given: run 'make test-loader'")
    with rest_catalog(Path(str(jars)), tmp_path) as uri:
        between = Proxy(uri)
        RestCatalog("tests", uri=uri).create_namespace("db")
        yield between
        between.shutdown()


@pytest.fixture
def cache(server: Path, proxy: Proxy, tmp_path: Path) -> Iterator[Cache]:
    """A cache of two data nodes with files, so that a killed one has its rows again."""
    caches = Caches(server, tmp_path / "logs")
    env = {"CATALOG_URI": proxy.uri, "SPILL_DIR": str(tmp_path / "spill")}
    one = caches.start(["--puts"], mode="cluster", env=env)
    one.wait("Ready")
    yield one
    one.stop(signal.SIGKILL)
    caches.close()


@pytest.mark.night
def test_random_kills_while_a_dataset_is_committed(cache: Cache, proxy: Proxy, chance: Chance) -> None:
    table = RestCatalog("tests", uri=f"http://{proxy.catalog}").create_table("db.t", SCHEMA)
    made: dict[int, Committed] = {}
    with DataCache(cache.endpoint, retry_seconds=limit()) as client:
        for number, rng in chance.schedules(KILLS):
            published = put(client, "a", rows_of(number), parts=4, mode="replace", progress=False)
            name, killed = rng.choice(list(cache.processes)), list[str]()

            def kill(name: str = name, killed: list[str] = killed) -> None:
                cache.restart(name)
                killed.append(name)

            moment = rng.choice(["look", "commit", "answer"])
            strike = killing(kill, answered=moment == "answer")
            proxy.next_looks = [strike] if moment == "look" else []
            proxy.next = [strike] if moment != "look" else []
            proxy.next += [rng.choice(FAULTS) for _ in range(rng.randrange(3))]
            made[number] = commit(client, published, "db.t")
            assert killed == [name], f"{name} was not killed"
            cache.wait("Ready")
            again = commit(client, published, "db.t")
            assert (again.snapshot, again.existed) == (made[number].snapshot, True), f"{name} was killed"
    table.refresh()
    assert [s.snapshot_id for s in table.snapshots()] == [m.snapshot for m in made.values()]
    ids = table.scan(selected_fields=("id",)).to_arrow()["id"].to_pylist()
    assert sorted(ids) == sorted(row for number in made for row in range(number * ROWS, (number + 1) * ROWS))
    chance.note(f"kills while a dataset is committed: {len(made)}, each one snapshot")


def test_a_commit_that_is_refused_says_why(cache: Cache) -> None:
    with DataCache(cache.endpoint) as client:
        put(client, "a", rows_of(0), progress=False)
        assert commit(client, "a", "db.made").table == "db.made"
        other = rows_of(0).rename_columns(["id", "words"])
        with pytest.raises(RefusedError, match='column "words", of type string: the table has no such column'):
            commit(client, put(client, "b", other, progress=False), "db.made")
