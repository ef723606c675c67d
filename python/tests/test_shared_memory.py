# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows of a cache on the same machine, which come in shared memory: they are the same as by TCP."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chance import Chance
from kit.deadline import eventually

from kubeflow_datacache import DataCache
from kubeflow_datacache.h2 import shared
from kubeflow_datacache.h2.shared import Shared, SharedMemory, Slots, Wanted
from test_narrow import write

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has memory that can be sealed")

ROWS = 20_000
OPTIONS: dict[str, Any] = {"global_batch_size": 16, "seed": 3, "tail": "keep"}


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The slots of the messages that come in shared memory, as they come."""
    slots = list[int]()
    read = SharedMemory.message

    def message(memory: SharedMemory, place: bytes) -> pa.Buffer:
        slots.append(int.from_bytes(place[:4], "little"))
        return read(memory, place)

    monkeypatch.setattr(SharedMemory, "message", message)
    return slots


def by_tcp(monkeypatch: pytest.MonkeyPatch, read: Callable[[], Any]) -> Any:
    """What read returns without shared memory."""
    with monkeypatch.context() as patched:
        patched.setenv("DATACACHE_SHARED_MEMORY", "off")
        return read()


def batches(cache: DataCache, **options: Any) -> list[pa.RecordBatch]:
    """The batches of an epoch, all of which are kept."""
    with contextlib.closing(cache.loader(**OPTIONS, **options)) as loader:
        return [batch.arrow() for batch in loader]


def table(rng: random.Random, folder: Path) -> Path:
    """Writes a table of random columns."""
    write(rng, folder / "rows", ROWS)
    return folder / "rows"


def wide(folder: Path) -> Path:
    """Writes a table of 1.4 MB."""
    columns = {f"c{i}": np.arange(ROWS) * (i + 1) / 7 for i in range(9)}
    pq.write_table(pa.table(columns), folder / "wide.parquet")
    return folder / "wide.parquet"


@pytest.mark.parametrize("nodes", [1, 3])
def test_rows_are_the_same(
    server: Path, tmp_path: Path, chance: Chance, monkeypatch: pytest.MonkeyPatch, messages: list[int], nodes: int
) -> None:
    (_, rng), *_ = chance.schedules(1)
    source = table(rng, tmp_path)
    with DataCache.local(source, program=server, progress=False, nodes=nodes) as cache:
        for options in ({}, {"shuffle": False}, {"window": 4}, {"prefetch_bytes": 1 << 17}):
            read = functools.partial(batches, cache, **options)
            expected = by_tcp(monkeypatch, read)
            assert not messages
            assert read() == expected
            assert messages
            messages.clear()
        rows = [rng.randrange(ROWS) for _ in range(500)]
        expected = by_tcp(monkeypatch, lambda: cache.table()[rows])
        assert cache.table()[rows] == expected
        assert messages


def test_batches_may_be_kept(
    server: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: list[int]
) -> None:
    slots = Slots(shared.CIRCULATING + 2, 1 << 20)
    monkeypatch.setattr(Shared, "wanted", lambda self, *_: Wanted(self, slots))
    with DataCache.local(wide(tmp_path), program=server, progress=False) as cache:
        options: dict[str, Any] = {"shuffle": True, "prefetch_bytes": 1 << 17}
        expected = by_tcp(monkeypatch, lambda: batches(cache, **options))
        assert batches(cache, **options) == expected
        assert len(messages) > slots.number


def test_messages_that_do_not_fit(
    server: Path, tmp_path: Path, chance: Chance, monkeypatch: pytest.MonkeyPatch, messages: list[int]
) -> None:
    (_, rng), *_ = chance.schedules(1)
    slots = Slots(shared.CIRCULATING + 2, shared.LEAST)
    monkeypatch.setattr(Shared, "wanted", lambda self, *_: Wanted(self, slots))
    with DataCache.local(table(rng, tmp_path), program=server, progress=False) as cache:
        expected = by_tcp(monkeypatch, lambda: batches(cache))
        assert batches(cache) == expected
        assert len(messages) <= 1  # at most the last message is short enough for a slot


def test_a_child_keeps_its_batches(server: Path, tmp_path: Path, messages: list[int]) -> None:
    with (
        DataCache.local(wide(tmp_path), program=server, progress=False) as cache,
        contextlib.closing(cache.loader(**OPTIONS, shuffle=True, prefetch_bytes=1 << 17)) as loader,
    ):
        steps = iter(loader)
        batch = next(steps).arrow()
        assert messages
        before = batch.to_pydict()
        read, written = os.pipe()
        child = os.fork()
        if not child:
            os.read(read, 1)
            os._exit(batch.to_pydict() != before)
        del batch
        for _ in steps:
            pass
        os.write(written, b".")
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_killed_client_leaves_nothing(server: Path, tmp_path: Path) -> None:
    script = (
        "import sys, kubeflow_datacache as d; next(iter(d.DataCache(sys.argv[1]).loader(global_batch_size=16)));"
        "print(flush=True); input()"
    )
    with DataCache.local(wide(tmp_path), program=server, progress=False) as cache:
        endpoint = cache.get_flight_info({"kind": "shard", "index": 0, "total": 1}).endpoints[0].location
        address = f"datacache-{endpoint.rpartition(':')[2]}"
        assert connections(address) == 0
        client = subprocess.Popen(
            [sys.executable, "-c", script, cache.endpoint],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        with client:
            assert client.stdout is not None
            client.stdout.readline()
            assert connections(address) > 0
            client.kill()
        eventually("the server to close its end, and to free the memory", lambda: not connections(address))
        assert len(batches(cache)) == -(-ROWS // 16)


def connections(address: str) -> int:
    """How many clients are connected to an abstract Unix address."""
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
    return sum(line[-1] == f"@{address}" and line[5] == "03" for line in lines)


def test_memory_goes_from_stream_to_stream(server: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[SharedMemory]()
    init = SharedMemory.__init__

    def make(memory: SharedMemory, port: int, slots: Slots) -> None:
        init(memory, port, slots)
        made.append(memory)

    monkeypatch.setattr(SharedMemory, "__init__", make)
    with DataCache.local(wide(tmp_path), program=server, progress=False) as cache:
        for _ in range(3):
            (stream,) = cache.get_flight_info({"kind": "shard", "index": 0, "total": 1}).endpoints
            reader, rows = cache.stream(stream.location, stream.ticket, 1 << 20), 0
            with contextlib.suppress(StopIteration):
                while True:
                    rows += reader.read_chunk()[0].num_rows
            assert rows == ROWS
    assert len(made) == 1


def test_little_memory_is_kept(server: Path, tmp_path: Path) -> None:
    with DataCache.local(wide(tmp_path), program=server, progress=False) as cache:
        endpoint = cache.get_flight_info({"kind": "shard", "index": 0, "total": 1}).endpoints[0].location
        address = f"datacache-{endpoint.rpartition(':')[2]}"
        for megabytes in range(1, 9):  # streams with different prefetch_bytes use memory of different sizes
            assert sum(batch.num_rows for batch in batches(cache, prefetch_bytes=megabytes << 20)) == ROWS
        eventually("the server to close connections as the client has", lambda: connections(address) <= 2)


def test_idle_memory_is_taken_back(server: Path, tmp_path: Path, messages: list[int]) -> None:
    with DataCache.local(wide(tmp_path), program=server, progress=False, memory_limit="300Mi") as cache:
        location = cache.get_flight_info({"kind": "shard", "index": 0, "total": 1}).endpoints[0].location
        want = batches(cache)
        kept = cache._shared._idle  # pyright: ignore[reportPrivateUsage]
        while not kept:  # the loader was closed before the last stream's status was read, and its memory with it
            messages.clear()
            assert all(got.equals(wanted) for got, wanted in zip(batches(cache), want, strict=True))
        (idle,), before = kept.values(), len(messages)
        others = list[SharedMemory]()  # held by clients that make no call
        while idle.alive:
            assert len(others) < 200, "the server has memory for any number of clients, and takes none back"
            others.append(SharedMemory(int(location.rpartition(":")[2]), Slots(64, 1 << 20)))
        again = batches(cache)
        assert before > 0, "no rows came in shared memory"
        assert len(messages) == 2 * before, "not all rows came in another memory"
        assert all(got.equals(wanted) for got, wanted in zip(again, want, strict=True))
        for other in others:
            other.close()
