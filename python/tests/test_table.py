# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The map-style dataset: rows by index."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tables
from cluster import Cluster
from lake import Builder, Lake
from peer import Peer, rows_of
from small import served
from wide import ROWS
from wide import rows_of as wide_rows

from kubeflow_datacache import ColumnError, DataCache, World


def test_rows_by_index(cache: DataCache, rng: random.Random) -> None:
    rows = cache.table()
    assert len(rows) == 100
    for _ in range(20):
        asked = [rng.randrange(100) for _ in range(rng.randint(0, 30))]
        assert rows.__getitems__(asked) == rows_of(asked)
    assert rows[41] == rows_of([41]).to_pylist()[0]
    assert rows[np.int32(-1)] == rows_of([99]).to_pylist()[0]
    rows.close()


def test_a_random_sampler_over_real_servers(cluster: Cluster, connect: Callable[..., DataCache]) -> None:
    rows = connect(cluster.endpoint).table()
    order = np.random.default_rng(5).permutation(ROWS)[:9_000]
    for first in range(0, len(order), 1_500):
        asked = order[first : first + 1_500]
        assert rows.__getitems__(asked).equals(wide_rows(asked))
    cluster.kill("node-1")
    cluster.start("node-1")
    assert rows.__getitems__([ROWS - 1, 0]).equals(wide_rows(np.array([ROWS - 1, 0]))), "after a node's restart"
    rows.close()


@pytest.mark.parametrize("build", [tables.types, tables.types_required, tables.evolved, tables.deleted, tables.plain])
def test_every_type_of_column(build: Builder, server: Path, tmp_path: Path, connect: Callable[..., DataCache]) -> None:
    """The rows by index equal those of an epoch; the conformance tests check the values themselves."""
    made = Lake(tmp_path).table("table", build)
    with served(server, tmp_path, made) as endpoint:
        cache = connect(endpoint)
        loader = cache.loader(global_batch_size=1000, shuffle=False, tail="keep", world=World(0, 1))
        whole = pa.Table.from_batches([batch.arrow() for batch in loader], schema=cache.schema).combine_chunks()
        assert whole.num_rows == len(cache)
        asked = np.random.default_rng(3).integers(0, len(cache), 700)
        got = cache.table().__getitems__(asked)
        assert pa.Table.from_batches([got]).equals(whole.take(pa.array(asked)))


def test_more_rows_than_one_request_takes(cluster: Cluster, connect: Callable[..., DataCache]) -> None:
    rows = connect(cluster.endpoint).table(columns=["id"])
    asked = np.random.default_rng(6).integers(0, ROWS, 1_100_000)
    assert rows.__getitems__(asked).column("id").equals(pa.array(asked))


@pytest.mark.parametrize("index", [100, -101, 1 << 40])
def test_rows_outside_the_table(cache: DataCache, index: int) -> None:
    with pytest.raises(IndexError, match="outside the table of 100 rows"):
        cache.table()[index]


def test_indices_are_whole_numbers(cache: DataCache) -> None:
    with pytest.raises(TypeError):
        cache.table().__getitems__([1.5])  # pyright: ignore[reportArgumentType]


MASK = np.arange(100) % 7 == 3
INDICES: list[Any] = [
    MASK,
    MASK.tolist(),
    pa.array(MASK),
    slice(None, None, -9),
    slice(-5, None),
    slice(200, 300),
    [-1, 0, -100, 5, 5],
    range(90, 10, -7),
    np.array([7, -3], np.int8),
    np.array([7, 3], np.uint64),
    [],
]


@pytest.mark.parametrize("index", INDICES, ids=[str(number) for number in range(len(INDICES))])
def test_indices_mean_what_they_mean_in_numpy(cache: DataCache, index: Any) -> None:
    plain = index.to_numpy(zero_copy_only=False) if isinstance(index, pa.Array) else index
    want = rows_of(np.arange(100)[plain].tolist())
    rows = cache.table()
    assert rows[index] == want
    assert rows.__getitems__(index) == want


@pytest.mark.parametrize(
    ("index", "kind", "message"),
    [
        (MASK[:99], IndexError, "a mask of 99 bools for a table of 100 rows"),
        ([True, False], IndexError, "a mask of 2 bools for a table of 100 rows"),
        ([True, 3], TypeError, "mix bools and numbers"),
        (True, TypeError, "is one bool"),
        (np.array([[1, 2]]), IndexError, "indices of 2 dimensions"),
        (np.array([1.0]), TypeError, "indices of type float64"),
        (np.array([1 << 63], np.uint64), IndexError, "outside the table"),
    ],
)
def test_what_is_no_index(cache: DataCache, index: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        cache.table()[index]


def test_columns_and_transform(cache: DataCache) -> None:
    def as_lists(rows: pa.RecordBatch) -> list[str]:
        return rows.column("name").to_pylist()

    names = cache.table(columns=["name"], transform=as_lists)
    assert names.__getitems__([3, 1]) == ["row 3", "row 1"]
    assert names[7] == ["row 7"]
    with pytest.raises(ColumnError, match="'nmae' is no column"):
        cache.table(columns=["nmae"])


def test_goes_on_after_a_restart(peer: Peer, cache: DataCache) -> None:
    rows = cache.table()
    assert rows[5]["id"] == 5
    peer.restart([(0, 2), (2, 100)])
    rows.close()
    assert rows.__getitems__([99, 1, 50]) == rows_of([99, 1, 50])


def test_pickles_to_connections_of_its_own(cache: DataCache) -> None:
    rows = cache.table(columns=["id"])
    assert rows[5] == {"id": 5}
    again = pickle.loads(pickle.dumps(rows))
    assert again[6] == {"id": 6}
    assert isinstance(again.__getitems__([]), pa.RecordBatch)
    again.close()
