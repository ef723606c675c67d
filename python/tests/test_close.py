# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""close() ends blocked calls: from any thread, in time, and whatever the servers do."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
from kit.deadline import limit
from peer import Peer, Table
from script import Connection, Script

from kubeflow_datacache import Batch, DataCache, DataCacheError, World
from kubeflow_datacache.fetch.prefetch import Prefetcher
from kubeflow_datacache.order.epoch import Share
from kubeflow_datacache.stop import Stop

ALONE = World(0, 1)


def ours() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("datacache-")]


def test_close_from_another_thread_raises_in_the_reader(peer: Peer, cache: DataCache) -> None:
    peer.faults.server_seconds = 0.2
    loader = cache.loader(global_batch_size=10, world=ALONE, prefetch_bytes=1)
    first, errors = threading.Event(), list[BaseException]()

    def read() -> None:
        try:
            for _ in loader:
                first.set()
        except BaseException as error:
            errors.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    assert first.wait(limit())
    loader.close()
    reader.join(limit())
    assert [str(error) for error in errors if "close" in str(error)], errors


def test_close_as_an_iteration_begins(cache: DataCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """close() in another thread, after the Prefetcher has started and before the loader has stored it."""
    loader, before = cache.loader(global_batch_size=10, world=ALONE), len(ours())
    begin: Callable[[Share], Prefetcher] = loader._read  # pyright: ignore[reportPrivateUsage]

    def closed(share: Share) -> Prefetcher:
        reading = begin(share)
        closing = threading.Thread(target=loader.close)
        closing.start()
        closing.join(limit())
        return reading

    monkeypatch.setattr(loader, "_read", closed)
    with pytest.raises(RuntimeError, match="close"):
        next(iter(loader))
    assert len(ours()) == before


@pytest.mark.parametrize("asked", ["as the epoch begins", "as a stream broke"])
def test_close_while_the_head_is_frozen(peer: Peer, connect: Callable[..., DataCache], asked: str) -> None:
    cache = connect(peer.endpoint, retry_seconds=1e6)
    loader = cache.loader(global_batch_size=10, world=ALONE, prefetch_bytes=1)
    waits = threading.Event()

    def freeze(connection: Connection) -> None:
        connection.request()
        waits.set()
        connection.drain()  # until the client disconnects

    before = len(ours())
    with Script(freeze) as frozen:
        if asked == "as a stream broke":
            peer.faults.breaks = [20] * 9
        cache.endpoint = frozen.location if asked == "as the epoch begins" else peer.endpoint
        batches = iter(loader)
        reader = threading.Thread(target=ends, args=(batches, errors := list[BaseException]()))
        if asked == "as a stream broke":
            next(batches)
            cache.endpoint = frozen.location
        reader.start()
        assert waits.wait(limit())
        closing = threading.Thread(target=loader.close, daemon=True)
        closing.start()
        closing.join(limit())
        assert not closing.is_alive(), "close() waits for the head"
        reader.join(limit())
        assert not reader.is_alive()
        assert [isinstance(error, RuntimeError | DataCacheError) for error in errors] == [True], errors
        assert len(ours()) == before, "no thread outlives it"


def test_close_of_a_permutation_while_a_data_node_is_frozen(peer: Peer, cache: DataCache) -> None:
    rows, waits, errors = cache.table(), threading.Event(), list[BaseException]()

    def freeze(connection: Connection) -> None:
        waits.set()
        connection.request()
        connection.drain()

    def read() -> None:
        try:
            rows[3]
        except BaseException as error:
            errors.append(error)

    with Script(freeze) as frozen:
        peer.data_port = int(frozen.location.rpartition(":")[2])
        reader = threading.Thread(target=read)
        reader.start()
        assert waits.wait(limit())
        rows.close()
        reader.join(limit())
    assert "closed while it read" in str(errors[0])


def test_a_stop_breaks_off_what_comes_after_it() -> None:
    stop, cancelled = Stop(), list[str]()
    with stop.cancelling(lambda: cancelled.append("under way")):
        stop.set()
    with stop.cancelling(lambda: cancelled.append("after it")):
        pass
    stop.set()
    assert cancelled == ["under way", "after it"]


def ends(batches: Iterator[Batch], errors: list[BaseException]) -> None:
    """Reads all batches; records an error."""
    try:
        list(batches)
    except BaseException as error:
        errors.append(error)


UNFINISHED = """
import sys
from kubeflow_datacache import DataCache, World
cache = DataCache(sys.argv[1])
loader = cache.loader(global_batch_size=2, world=World(0, 1), prefetch_bytes=1, progress=sys.argv[2] == "progress")
batches = iter(loader)
next(batches)
"""


@pytest.mark.parametrize("how", ["plain", "progress"])
def test_an_unfinished_iterator_at_exit_says_nothing(how: str) -> None:
    with Peer(Table(2000, [(0, 900), (900, 2000)])) as peer:
        command = [sys.executable, "-c", UNFINISHED, peer.endpoint, how]
        run = subprocess.run(command, check=False, capture_output=True, text=True, timeout=limit())
    output = run.stderr if how == "plain" else run.stderr.replace("epoch 0", "", 1)
    assert (run.returncode, run.stdout) == (0, "")
    assert "Error" not in output
    assert "Exception" not in output
    assert how == "progress" or output == ""
