# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Error messages name the request, the alternatives, and what to do."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.flight as fl
import pytest
from kit.ports import free_port
from peer import Peer, Table

from kubeflow_datacache import (
    ColumnError,
    DataCache,
    DataCacheError,
    DatasetChangedError,
    RefusedError,
    UnreachableError,
    World,
)
from kubeflow_datacache.fetch.retry import Attempts

Connect = Callable[..., DataCache]
ALONE = World(0, 1)


def test_a_server_that_is_gone_for_good() -> None:
    endpoint = f"grpc://127.0.0.1:{free_port()}"
    begun = time.monotonic()
    with DataCache(endpoint, retry_seconds=0.4) as cache, pytest.raises(UnreachableError) as error:
        cache.loader(global_batch_size=1, world=ALONE)
    assert time.monotonic() - begun >= 0.4
    message = str(error.value)
    assert re.match(
        rf"could not ask the head at {endpoint}: tried \d+ times in [\d.]+ s \(retry_seconds = 0.4\)", message
    )
    assert "the last answer was UNAVAILABLE: failed to connect" in message
    assert "See whether the cache runs, at this address" in message


def test_a_head_that_goes_on_loading_says_so(peer: Peer, connect: Connect) -> None:
    peer.faults.head_unavailable = 1 << 30
    with pytest.raises(UnreachableError, match=r"UNAVAILABLE: loading 43% \(12/28 splits\)\. .* more retry_seconds"):
        len(connect(peer.endpoint, 0.2))


def test_a_head_whose_load_gets_on_is_waited_for_longer(peer: Peer, connect: Connect) -> None:
    peer.faults.head_unavailable, peer.faults.progress = 8, True
    begun = time.monotonic()
    assert len(connect(peer.endpoint, 0.2)) == 100
    assert time.monotonic() - begun > 0.4, "this test waits longer than the limit"


def test_a_load_that_stops_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    now = [50.0]
    attempts = Attempts("ask the head", 20, Skip(now), lambda: now[0])
    for done in range(4000):  # a data node loads the rows of a lost one
        attempts.failed(fl.FlightUnavailableError(f"data node 1 restarted, reloading ({done}/4000 splits): slow"))
    assert now[0] > 100
    with pytest.raises(
        UnreachableError, match=r"tried \d+ times in [\d.]+ s, 20\.0 s of them without progress \(retry"
    ):
        fail_for_ever(attempts, "data node 1 restarted, reloading (3999/4000 splits): still slow")
    assert all("of at most 20 s" in record.getMessage() for record in caplog.records)


def fail_for_ever(attempts: Attempts, reason: str) -> None:
    while True:
        attempts.failed(fl.FlightUnavailableError(reason))


def test_time_that_the_head_is_asked_is_not_counted() -> None:
    now = [50.0]
    attempts = Attempts("read from data node 1", 20, Skip(now), lambda: now[0])
    attempts.failed(fl.FlightUnavailableError("connection lost"))
    with attempts.not_counted():
        now[0] += 300
    with pytest.raises(UnreachableError, match=r"in 320\.0 s, 20\.0 s of them"):
        fail_for_ever(attempts, "connection lost")


def test_a_head_that_loads_is_waited_for(peer: Peer, cache: DataCache) -> None:
    peer.faults.head_unavailable = 3
    assert len(cache) == 100
    assert len(peer.requests) == 4


def test_a_long_wait_is_told(caplog: pytest.LogCaptureFixture) -> None:
    now, reason = [50.0], "loading 43% (12/28 splits)"
    attempts = Attempts("ask the head", 20, Skip(now), lambda: now[0])
    while now[0] < 70:
        attempts.failed(fl.FlightUnavailableError(reason))
    with pytest.raises(UnreachableError, match=r"tried \d+ times in 20\.0 s"):
        attempts.failed(fl.FlightUnavailableError(reason))
    told = [record.getMessage() for record in caplog.records if record.name == "kubeflow_datacache"]
    assert len(told) == 2, "not every try is told, nor the first second"
    # The first failed attempt after 1 s and the first 10 s later. Pauses grow to 2 s and vary by up to a quarter.
    for warning, seconds in zip(told, ("[12]", "1[1-5]"), strict=True):
        assert re.fullmatch(
            rf"waiting {seconds} of at most 20 s to ask the head; the last answer was UNAVAILABLE: {re.escape(reason)}",
            warning,
        )


class Skip(threading.Event):
    """An Event whose wait returns at once and advances a fake clock."""

    def __init__(self, now: list[float]) -> None:
        super().__init__()
        self._now = now

    def wait(self, timeout: float | None = None) -> bool:
        """Advances the clock."""
        self._now[0] += timeout or 0
        return False


def test_servers_that_are_gone_in_mid_epoch(connect: Connect) -> None:
    with Peer(Table(200, [(0, 200)], message_rows=1)) as peer:
        loader = connect(peer.endpoint, 0.3).loader(global_batch_size=10, prefetch_bytes=1, world=ALONE)
        batches = iter(loader)
        next(batches)
        peer.faults.head_unavailable = 1 << 30
        peer.faults.server_seconds = 0.05
        peer.stop()
        with pytest.raises(UnreachableError, match=r"could not ask the head at .*: tried \d+ times.*loading 43%"):
            list(batches)
        assert loader.state_dict()["next_step"] < 20


def test_an_unknown_column_is_refused_at_once(cache: DataCache) -> None:
    with pytest.raises(ColumnError) as error:
        cache.loader(global_batch_size=8, columns=["id", "nmae"], world=ALONE)
    assert str(error.value) == (
        "columns: 'nmae' is no column that the cache serves; there are ['id', 'name', 'vector']; did you mean 'name'?"
    )


def test_a_data_node_that_can_not_be_reached(peer: Peer, connect: Connect) -> None:
    peer.data_port = free_port()
    loader = connect(peer.endpoint, 0.5).loader(global_batch_size=8, shuffle=False, world=ALONE)
    message = (
        rf"could not read from data node 0 at grpc://127.0.0.1:{peer.data_port}: tried \d+ times .* UNAVAILABLE: failed"
    )
    with pytest.raises(UnreachableError, match=message):
        list(loader)


def test_what_the_server_refuses_is_not_tried_again(peer: Peer, cache: DataCache) -> None:
    with pytest.raises(RefusedError, match=r"'nmae' is no column; there are \['id', 'name', 'vector'\]"):
        cache.get_flight_info({"kind": "take", "columns": ["id", "nmae"]})
    assert len(peer.requests) == 1


def test_another_dataset_in_mid_epoch(peer: Peer, cache: DataCache) -> None:
    loader = cache.loader(global_batch_size=5, prefetch_bytes=1, world=ALONE)
    batches = iter(loader)
    next(batches)
    peer.restart()
    peer.table.fingerprint = "f-2"
    peer.faults.breaks = [0] * 3
    loader.set_epoch(1)
    with pytest.raises(DatasetChangedError, match=r"fingerprint f-2 .*began with f-1.*make a new loader"):
        list(loader)
    again = cache.loader(global_batch_size=5, world=ALONE)
    assert again.dataset.fingerprint == "f-2"
    assert len(list(again)) == 20


def test_another_dataset_between_reads_by_index(peer: Peer, cache: DataCache) -> None:
    rows = cache.table(columns=["id"])
    assert rows[3] == {"id": 3}
    peer.restart()
    peer.table.rows, peer.table.nodes, peer.table.fingerprint = 50, [(0, 50)], "f-2"
    rows.close()
    with pytest.raises(DatasetChangedError, match="make a new table or"):
        rows[4]
    assert len(cache.table()) == len(cache) == 50
    assert cache.table(columns=["id"])[4] == {"id": 4}


def test_a_stream_that_ends_early_is_never_a_shorter_epoch(peer: Peer, cache: DataCache) -> None:
    peer.faults.short_by = 1
    with pytest.raises(DataCacheError, match="ended its stream"):
        list(cache.loader(global_batch_size=5, world=ALONE))


def test_rank_outside_the_world() -> None:
    with pytest.raises(ValueError, match=r"rank = 3 is outside the world of 3: want 0 <= rank < 3"):
        World(3, 3)


@pytest.mark.parametrize("endpoint", ["localhost:50051", "http://localhost:50051", ""])
def test_bad_endpoints(endpoint: str) -> None:
    with pytest.raises(ValueError, match="want grpc://HOST:PORT"):
        DataCache(endpoint)


def test_from_env() -> None:
    assert DataCache.from_env({"TRAIN_JOB_NAME": "bert"}).endpoint == "grpc://bert-cache-service:50051"
    assert DataCache.from_env({"OMPI_TRAIN_JOB_NAME": "bert"}).endpoint == "grpc://bert-cache-service:50051"
    environ = {"TRAIN_JOB_NAME": "bert", "DATACACHE_ENDPOINT": "grpc://127.0.0.1:50051"}
    assert DataCache.from_env(environ).endpoint == "grpc://127.0.0.1:50051"
    with pytest.raises(ValueError, match="neither TRAIN_JOB_NAME nor DATACACHE_ENDPOINT is set"):
        DataCache.from_env({})


def test_from_env_by_name() -> None:
    environ = {"TRAIN_JOB_NAME": "train"}
    found = {name: DataCache.from_env(environ, name=name).endpoint for name in ("code", "team-b/books")}
    assert found == {  # internal/reference/reference_test.go has the same
        "code": "grpc://train-cache-service-5694d08a:50051",
        "team-b/books": "grpc://train-cache-service-dbd1502b:50051",
    }
    environ["DATACACHE_ENDPOINT_TEAM_B_BOOKS"] = "grpc://127.0.0.1:50051"
    assert DataCache.from_env(environ, name="team-b/books").endpoint == "grpc://127.0.0.1:50051"
    assert DataCache.from_env(environ).endpoint == "grpc://train-cache-service:50051"
    environ["DATACACHE_ENDPOINT"] = "grpc://127.0.0.1:50052"
    assert DataCache.from_env(environ, name="team-b/books").endpoint == "grpc://127.0.0.1:50051"
    with pytest.raises(ValueError, match=r"address of one cache, and 'code' .* set DATACACHE_ENDPOINT_CODE"):
        DataCache.from_env(environ, name="code")
    with pytest.raises(ValueError, match="neither TRAIN_JOB_NAME nor DATACACHE_ENDPOINT_CODE is set"):
        DataCache.from_env({}, name="code")


def test_from_env_reads_the_dataset_of_the_uri(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("kubeflow_datacache.services.FOLDER", tmp_path)
    environ = {"TRAIN_JOB_NAME": "train"}

    def dataset(**options: str) -> str | None:
        return DataCache.from_env(environ, **options)._name  # pyright: ignore[reportPrivateUsage, reportArgumentType]

    assert dataset() is None
    assert dataset(name="team-b/books/tok_v1.2") == "tok_v1.2"
    assert dataset(name="team-b/books") is None
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "dataset").write_text("words")  # as admission does
    assert dataset() == "words"
    assert dataset(dataset="other") == "other"


@pytest.mark.parametrize("name", ["", "Code", "a/b/-c", "a/b/c/d", "web,code", "datacache://web", "code\n"])
def test_from_env_by_a_name_that_is_none(name: str) -> None:
    with pytest.raises(ValueError, match=r"name = .*: want the name of a cache"):
        DataCache.from_env({"TRAIN_JOB_NAME": "train"}, name=name)
