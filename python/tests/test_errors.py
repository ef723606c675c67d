# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Errors name what was asked, what is there, and what to do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from peer import Peer, Table
from server import free_port

from kubeflow_datacache import (
    DataCache,
    DataCacheError,
    DatasetChangedError,
    Loader,
    RefusedError,
    TransformError,
    UnreachableError,
    World,
)

ALONE = World(0, 1)


def test_a_server_that_is_gone_for_good() -> None:
    endpoint = f"grpc://127.0.0.1:{free_port()}"
    begun = time.monotonic()
    with DataCache(endpoint, retry_seconds=0.4) as cache, pytest.raises(UnreachableError) as error:
        cache.loader(global_batch_size=1, world=ALONE)
    assert 0.4 <= time.monotonic() - begun < 10
    for part in (f"ask the head at {endpoint}", "tried", "times in 0.", "retry_seconds = 0.4", "UNAVAILABLE"):
        assert part in str(error.value)


def test_a_head_that_goes_on_loading_says_so(peer: Peer, connect: Callable[..., DataCache]) -> None:
    peer.faults.head_unavailable = 1 << 30
    with pytest.raises(UnreachableError, match=r"loading 43% \(12/28 splits\)"):
        len(connect(peer.endpoint, 0.2))


def test_a_head_that_loads_is_waited_for(peer: Peer, cache: DataCache) -> None:
    peer.faults.head_unavailable = 3
    assert len(cache) == 100
    assert len(peer.requests) == 4


def test_servers_that_are_gone_in_mid_epoch(connect: Callable[..., DataCache]) -> None:
    with Peer(Table(200, [(0, 200)], message_rows=1)) as peer:
        loader = connect(peer.endpoint, 0.3).loader(global_batch_size=10, prefetch_bytes=1, world=ALONE)
        batches = iter(loader)
        next(batches)
        peer.faults.head_unavailable = 1 << 30
        peer.faults.server_seconds = 0.05
        peer.stop()
        with pytest.raises(UnreachableError, match="could not"):
            list(batches)
        assert loader.state_dict()["next_step"] < 20


def test_an_unknown_column_is_not_tried_again(peer: Peer, cache: DataCache) -> None:
    loader = cache.loader(global_batch_size=8, columns=["id", "nmae"], world=ALONE)
    with pytest.raises(RefusedError, match="'nmae' is no column; there are"):
        next(iter(loader))
    assert len(peer.requests) == 2


def test_another_dataset_in_mid_epoch(peer: Peer, cache: DataCache) -> None:
    loader = cache.loader(global_batch_size=5, prefetch_bytes=1, world=ALONE)
    batches = iter(loader)
    next(batches)
    peer.restart()
    peer.table.fingerprint = "f-2"
    peer.faults.breaks = [0] * 3
    loader.set_epoch(1)
    with pytest.raises(DatasetChangedError, match=r"fingerprint f-2 .*began with f-1"):
        list(loader)


def test_a_stream_that_ends_early_is_never_a_shorter_epoch(peer: Peer, cache: DataCache) -> None:
    peer.faults.short_by = 1
    with pytest.raises(DataCacheError, match="ended its stream"):
        list(cache.loader(global_batch_size=5, world=ALONE))


def test_rank_outside_the_world() -> None:
    with pytest.raises(ValueError, match=r"rank = 3 is outside the world of 3: want 0 <= rank < 3"):
        World(3, 3)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"global_batch_size": 0}, "global_batch = 0"),
        ({"tail": "half"}, "tail = 'half'"),
        ({"prefetch_bytes": 0}, "prefetch_bytes = 0"),
        ({"transform_threads": -1}, "transform_threads = -1"),
        ({"worker": 2, "workers": 2}, "worker = 2 is outside workers = 2"),
    ],
)
def test_bad_words_are_refused_by_name(cache: DataCache, words: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        _loader(cache, {"global_batch_size": 4, "world": ALONE, **words})


def _loader(cache: DataCache, words: dict[str, Any]) -> Loader:
    return cache.loader(**words)


@pytest.mark.parametrize("endpoint", ["localhost:50051", "http://localhost:50051", ""])
def test_bad_endpoints(endpoint: str) -> None:
    with pytest.raises(ValueError, match="want grpc://HOST:PORT"):
        DataCache(endpoint)


def test_from_env() -> None:
    assert DataCache.from_env({"TRAIN_JOB_NAME": "bert"}).endpoint == "grpc://bert-cache-service:50051"
    with pytest.raises(ValueError, match="TRAIN_JOB_NAME is not set"):
        DataCache.from_env({})


def fails_on_42(rows: pa.RecordBatch) -> pa.RecordBatch:
    """A transform that does not like one row."""
    if 42 in rows.column("id").to_pylist():
        raise ZeroDivisionError("forty-two")
    return rows


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_a_transform_that_raises(cache: DataCache, threads: int) -> None:
    loader = cache.loader(
        global_batch_size=20, shuffle=False, transform=fails_on_42, transform_threads=threads, world=ALONE
    )
    batches = iter(loader)
    assert [next(batches).step, next(batches).step] == [0, 1], "batches before it come first"
    with pytest.raises(TransformError) as error:
        next(batches)
    for part in ("test_errors.fails_on_42", "ZeroDivisionError: forty-two", "step 2", "rows [40, 41, 42,", "20 rows"):
        assert part in str(error.value)
    assert isinstance(error.value.__cause__, ZeroDivisionError)
    assert loader.state_dict()["next_step"] == 2


@pytest.mark.parametrize("threads", [0, 1, 4, None])
def test_transforms_keep_the_order(cache: DataCache, threads: int | None) -> None:
    def slow_at_first(rows: pa.RecordBatch) -> dict[str, Any]:
        time.sleep(0.01 if rows.column("id")[0].as_py() < 30 else 0)
        return {"first": rows.column("id")[0].as_py()}

    loader = cache.loader(
        global_batch_size=3, shuffle=False, transform=slow_at_first, transform_threads=threads, world=ALONE
    )
    assert [batch.data["first"] for batch in loader] == list(range(0, 99, 3))


def test_a_transform_may_give_arrow(cache: DataCache) -> None:
    def only_id(rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows.select(["id"])

    loader = cache.loader(global_batch_size=50, transform=only_id, world=ALONE)
    assert [list(batch.numpy()) for batch in loader] == [["id"], ["id"]]
