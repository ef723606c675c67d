# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Loaders and heads of different releases: they work together, or say in one sentence why not."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as fl
import pytest
from lake import Lake, Made
from order import Epoch as Oracle
from server import Cache, Caches

from kubeflow_datacache import DataCache, DataCacheError, RefusedError, StateError, World, mix
from kubeflow_datacache.cache import Transport
from kubeflow_datacache.flight_info import FlightInfo

Connect = Callable[..., DataCache]
ROWS, NODES = 900, 9
# The fields of requests before the order had a version.
FIELDS = {
    "kind", "seed", "epoch", "shuffle", "clump", "global_batch", "tail", "rank", "world", "worker", "workers",
    "start_step", "columns", "filter", "split",
}  # fmt: skip


@pytest.fixture(scope="module")
def running(server: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cache]:
    """A real cache of 900 rows on nine data nodes."""
    folder = tmp_path_factory.mktemp("mixed")
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    cuts = np.linspace(0, ROWS, NODES + 1).astype(int).tolist()
    parts = [pa.table({"id": np.arange(lo, hi)}, schema=schema) for lo, hi in itertools.pairwise(cuts)]
    caches = Caches(server, folder / "logs")
    yield caches.of(Made("ids", Lake(folder).create("ids", schema, parts).metadata_location), nodes=NODES)
    caches.close()


@pytest.fixture
def client(running: Cache, connect: Connect) -> DataCache:
    """A client of the cache."""
    return connect(running.endpoint)


def requests_of(cache: DataCache, monkeypatch: pytest.MonkeyPatch, **more: Any) -> list[Mapping[str, Any]]:
    """The requests that will be sent, with further fields in those of loaders."""
    sent: list[Mapping[str, Any]] = []
    ask = cache.get_flight_info
    offered = cache.described  # asked without further fields
    monkeypatch.setattr(cache, "_described", dataclasses.replace(offered, narrow=False))  # as an older head answers

    def recorded(request: Mapping[str, Any], *args: Any) -> FlightInfo:
        sent.append({**request, **more})
        return ask(sent[-1], *args)

    monkeypatch.setattr(cache, "get_flight_info", recorded)
    return sent


def by(monkeypatch: pytest.MonkeyPatch, numbers: bool) -> None:
    """Makes loaders read by row numbers, or by streams."""
    monkeypatch.setattr("kubeflow_datacache.loader.takes", lambda *_: numbers)


def ids(cache: DataCache, **options: Any) -> list[int]:
    """The ids of an epoch in steps of 100 rows, in order. They are the numbers of the rows."""
    with_world: Any = {"global_batch_size": 100, "seed": 5, "world": World(0, 1), **options}
    return [id for batch in cache.loader(**with_world) for id in batch.numpy()["id"].tolist()]


@pytest.mark.parametrize("numbers", [False, True], ids=["streams", "row numbers"])
def test_a_loader_sends_an_older_head_what_it_knows(
    client: DataCache, monkeypatch: pytest.MonkeyPatch, numbers: bool
) -> None:
    by(monkeypatch, numbers)
    sent = requests_of(client, monkeypatch)
    assert ids(client) == list(Oracle(rows=ROWS, seed=5, global_batch=100).sequence())
    assert [request["kind"] for request in sent] == ["take" if numbers else "epoch"]
    assert set().union(*sent) <= FIELDS


def test_lanes_need_no_newer_head_where_rows_are_read_by_numbers(
    client: DataCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    by(monkeypatch, True)
    sent = requests_of(client, monkeypatch)
    assert ids(client, order=2) == list(Oracle(rows=ROWS, seed=5, global_batch=100, order=2).sequence())
    assert sent == [{"kind": "take"}]


def test_states_name_the_version_of_the_order(client: DataCache) -> None:
    options: Any = {"global_batch_size": 100, "world": World(0, 1)}
    states = {order: client.loader(order=order, **options).state_dict() for order in (1, 2)}
    assert [state["order_version"] for state in states.values()] == [1, 2]
    assert states[1].keys() == states[2].keys(), "a loader without lanes knows all fields"
    loader = client.loader(**options)
    loader.load_state_dict(states[1])
    with pytest.raises(StateError, match=r"^state: order_version = 2, but this loader has 1: make the loader with"):
        loader.load_state_dict(states[2])
    with pytest.raises(ValueError, match=r"^order = 2: mixtures have order version 1 alone"):
        mix({"ids": (client, 1.0)}, order=2, **options)


@pytest.mark.parametrize("transport", ["h2", "grpc"])
@pytest.mark.parametrize("numbers", [False, True], ids=["streams", "row numbers"])
def test_a_head_names_the_field_of_a_newer_loader_that_it_does_not_know(
    running: Cache, connect: Connect, monkeypatch: pytest.MonkeyPatch, numbers: bool, transport: Transport
) -> None:
    by(monkeypatch, numbers)
    cache = connect(running.endpoint, transport=transport)
    requests_of(cache, monkeypatch, later=2)
    with pytest.raises(RefusedError) as refused:
        ids(cache)
    kind = "take" if numbers else "epoch"
    assert str(refused.value).startswith(f'command: "later" is no field of kind "{kind}", which has v, kind, columns, ')
    assert "\n" not in str(refused.value)


METADATA: dict[str, Any] = {
    "v": 1, "dataset": {"table_uuid": "t", "snapshot": 5, "fingerprint": "f"}, "rows": 3, "nodes": [[0, 3]],
}  # fmt: skip


def answer(metadata: Any) -> fl.FlightInfo:
    """A head's answer."""
    return fl.FlightInfo(
        pa.schema([]), fl.FlightDescriptor.for_command(b""), [], 3, 0, app_metadata=json.dumps(metadata).encode()
    )


def test_answers_of_older_and_newer_heads_are_understood() -> None:
    older = FlightInfo.parse(answer(METADATA))
    newer = FlightInfo.parse(
        answer({**METADATA, "later": 1, "dataset": {**METADATA["dataset"], "filter": "", "later": {}}})
    )
    assert older == newer
    assert (older.dataset.rows, older.placement.bounds) == (3, ((0, 3),))
    with pytest.raises(DataCacheError, match=r"^the head speaks wire contract 2, this client 1: [^\n]*$"):
        FlightInfo.parse(answer({**METADATA, "v": 2}))


@pytest.mark.parametrize("transport", ["h2", "grpc"])
def test_what_a_cache_takes(running: Cache, connect: Connect, transport: Transport) -> None:
    cache = connect(running.endpoint, transport=transport)
    size = cache.sizing(ranks=40, rate=500e6)
    assert size.keys() == {"data_nodes", "node_memory", "head_memory", "cores", "connections"}
    assert (size["data_nodes"], size["connections"]) == (NODES, 40 * NODES)
    assert size["cores"] == pytest.approx(40 * 0.5 * 1.07), "of narrow rows"
    page = running.get("/")[1]
    assert f"memory of each: {size['node_memory']} bytes" in page
    assert f"memory of the head: {size['head_memory']} bytes" in page
    assert "cores of all data nodes: 1.1" in page
    for wrong in ({"ranks": 0, "rate": 1}, {"ranks": 10**6 + 1, "rate": 1}, {"ranks": 1, "rate": -1}):
        with pytest.raises((ValueError, RefusedError), match=r"ranks|rate"):
            cache.sizing(**wrong)
    node = connect(cache.get_flight_info({"kind": "take"}).endpoints[0].location, transport=transport)
    with pytest.raises(RefusedError, match=r'^action "sizing": ListActions names those of this server$'):
        node.sizing(ranks=1, rate=1)
