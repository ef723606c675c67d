# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Datasets of which each part is on two data nodes: one that is killed, with its memory, loses nothing."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from kit.deadline import limit
from server import Cache, Caches

from kubeflow_datacache import DataCache, DatasetChangedError, Put, RefusedError, UnreachableError, put

NODES, PARTS, ROWS = 3, 9, 63_000
TABLE = pa.table(
    {
        "id": range(ROWS),
        "text": [None if i % 7 == 0 else f"row {i} ü" for i in range(ROWS)],
        "tokens": pa.array([[i] * (i % 5) for i in range(ROWS)], pa.list_(pa.int32())),
        "flag": [i % 3 == 0 for i in range(ROWS)],
    }
)
SIZE = ROWS // PARTS


@pytest.fixture
def caches(server: Path, tmp_path: Path) -> Iterator[Caches]:
    """Caches of the test, which are killed at its end."""
    made = Caches(server, tmp_path)
    yield made
    made.close()


@pytest.fixture
def cache(caches: Caches) -> Iterator[Cache]:
    """A cache of processes that keep rows in memory alone, on two data nodes."""
    one = caches.start(["--puts"], nodes=NODES, mode="cluster", env={"PUT_KEEP": "replica"})
    one.wait("Ready")
    yield one
    one.stop(signal.SIGKILL)


def send(started: Put, *parts: int) -> None:
    """Sends parts."""
    for part in parts:
        started.send(part, lambda part=part: [TABLE.slice(part * SIZE, SIZE)])


def read(cache: Cache) -> pa.Table:
    """All rows of the dataset, by a client of its own."""
    with DataCache(cache.endpoint, dataset="a", retry_seconds=limit()) as one:
        return pa.Table.from_batches([one.head(2 * ROWS)])


@pytest.mark.parametrize("node", range(NODES))
def test_a_node_is_lost_at_every_step(node: int, cache: Cache) -> None:
    name = f"node-{node}"
    with DataCache(cache.endpoint, retry_seconds=limit()) as client:
        want = put(client, "control", TABLE, parts=PARTS, keep="memory", progress=False).fingerprint
        started = Put.begin(client, "a", TABLE.schema, parts=PARTS)
        send(started, 0, 3, 4, 6)
        cache.restart(name)
        send(started, 1, 2, 5, 7, 8)
        assert started.status()["lost"] == []
        cache.restart(name)  # the copies may still be on their way when the parts are published
        assert started.publish().fingerprint == want
        assert read(cache).equals(TABLE)
        with DataCache(cache.endpoint, dataset="a", retry_seconds=limit()) as reader:
            ids: list[int] = []
            for at, batch in enumerate(reader.loader(global_batch_size=1000, seed=3)):
                if at in (5, 25):  # while streams of all nodes run
                    cache.restart(name)
                ids += batch.arrow()["id"].to_pylist()
        assert sorted(ids) == list(range(ROWS))
        assert read(cache).equals(TABLE)
        for each in range(NODES):  # the rows that it has are copies of others by now
            cache.restart(f"node-{each}")
            assert read(cache).equals(TABLE), f"after node {each} was killed too"
        cache.restart("head")
        cache.restart(name)
        assert read(cache).equals(TABLE), "after the head was killed with a data node"


def test_two_neighbours_are_lost(cache: Cache) -> None:
    with DataCache(cache.endpoint, retry_seconds=limit()) as client:
        put(client, "a", TABLE, parts=PARTS, progress=False)
        cache.restart("node-0", "node-1")
        with pytest.raises(DatasetChangedError, match="node 0 restarted, and parts 0-2 of dataset a are lost: put it"):
            read(cache)
        put(client, "a", TABLE, parts=PARTS, mode="replace", progress=False)
    assert read(cache).equals(TABLE)


def test_copies_take_memory_and_another_node(caches: Caches) -> None:
    two = caches.start(["--puts"], mode="cluster", env={"PUT_LIMIT": "50Mi"})
    two.wait("Ready")
    with DataCache(two.endpoint, retry_seconds=1.0) as client:
        with pytest.raises(UnreachableError, match="bytes: 120000000"):
            Put.begin(client, "a", TABLE.schema, parts=1, nbytes=60_000_000, keep="replica")
        numbers = pa.table({"x": np.random.default_rng(1).integers(1 << 62, size=4_000_000)})
        started = Put.begin(client, "a", numbers.schema, parts=2, keep="replica")
        started.send(0, lambda: [numbers.slice(0, 3_000_000)])
        with pytest.raises(UnreachableError, match=r"memory limit reached: needed .* raise --put-limit"):
            started.send(1, lambda: [numbers])
        client.retry_seconds = limit()  # the cache frees the memory a little later
        started.send(1, lambda: [numbers.slice(3_000_000)])
        assert started.status()["staged"] >= 2 * 20_000_000
        started.publish()
    two.stop(signal.SIGKILL)
    alone = caches.start(["--puts"], nodes=1)
    alone.wait("Ready")
    with (
        DataCache(alone.endpoint, retry_seconds=1.0) as client,
        pytest.raises(RefusedError, match="this cache has one data node"),
    ):
        put(client, "a", TABLE, keep="replica", progress=False)
    alone.stop(signal.SIGKILL)
