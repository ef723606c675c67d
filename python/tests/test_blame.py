# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Who is slow: a real server that is stopped, short of CPU, behind a slow network, or faster than its client."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from server import Cache, Caches
from slow_wire import SlowWire
from small import small_table

from kubeflow_datacache import DataCache, Loader, UnreachableError, World
from kubeflow_datacache import cache as client
from kubeflow_datacache.h2 import connection

ROWS = 4_000
SOONER = {"grpc.keepalive_time_ms": 750, "grpc.keepalive_timeout_ms": 750, "grpc.http2.ping_timeout_ms": 750}
SMALL: dict[str, Any] = {"global_batch_size": 20, "shuffle": False, "prefetch_bytes": 1, "world": World()}


@pytest.fixture(scope="module")
def real(server: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cache]:
    """A cache of a table of 8 MB."""
    folder = tmp_path_factory.mktemp("small")
    caches = Caches(server, folder / "logs")
    try:
        yield caches.of(small_table(folder, ROWS))
    finally:
        caches.close()


def pulse(real: Cache, number: signal.Signals) -> None:
    """Sends a signal to the server."""
    for process in real.processes.values():
        process.send_signal(number)


@contextlib.contextmanager
def frozen(real: Cache, seconds: float) -> Generator[None]:
    """Stops the server for some seconds; at the end it runs."""
    pulse(real, signal.SIGSTOP)
    timer = threading.Timer(seconds, pulse, (real, signal.SIGCONT))
    timer.start()
    try:
        yield
    finally:
        timer.join()


@contextlib.contextmanager
def short_of_cpu(real: Cache) -> Generator[None]:
    """Lets the server run for 10 of every 100 ms, as a CPU limit of 10 % does."""
    end = threading.Event()

    def run() -> None:
        while not end.wait(0.01):
            pulse(real, signal.SIGSTOP)
            end.wait(0.09)
            pulse(real, signal.SIGCONT)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()
        pulse(real, signal.SIGCONT)


def read(loader: Loader, steps: int) -> Iterator[Any]:
    """An iterator after some steps."""
    batches = iter(loader)
    for _ in range(steps):
        next(batches)
    return batches


def test_a_stopped_server(real: Cache, connect: Callable[..., DataCache]) -> None:
    loader = connect(real.endpoint).loader(**SMALL)
    batches = read(loader, 10)
    before = loader.stats().seconds
    with frozen(real, 1.5):
        for _ in range(100):
            next(batches)
    seconds = loader.stats().seconds
    assert seconds["server"] - before["server"] > 1.0, loader.stats()
    assert seconds["wire"] - before["wire"] < 0.3, loader.stats()


def test_a_server_short_of_cpu(real: Cache, connect: Callable[..., DataCache]) -> None:
    loader = connect(real.endpoint).loader(**SMALL)
    read(loader, 10)
    with short_of_cpu(real):
        drained = sum(1 for _ in loader)
    assert drained == ROWS // 20 - 10
    stats = loader.stats()
    assert stats.bottleneck == "server", stats
    assert stats.seconds["server"] > 2 * stats.seconds["wire"], stats


def test_a_slow_network(real: Cache, connect: Callable[..., DataCache], monkeypatch: pytest.MonkeyPatch) -> None:
    cache = connect(real.endpoint)
    stream, wires = cache.stream, list[SlowWire]()

    def behind(location: str, ticket: bytes, *sizes: int) -> Any:
        wires.append(SlowWire(urlsplit(location).port or 0, 0.001))
        return stream(f"grpc://127.0.0.1:{wires[-1].port}", ticket, *sizes)

    monkeypatch.setattr(cache, "stream", behind)
    loader = cache.loader(**SMALL)
    read(loader, 12)
    stats = loader.stats()
    assert stats.bottleneck == "wire", stats
    loader.close()
    for wire in wires:
        wire.__exit__()


def test_a_slow_client(real: Cache, connect: Callable[..., DataCache]) -> None:
    loader = connect(real.endpoint).loader(**SMALL)
    for _ in read(loader, 120):
        time.sleep(0.01)
    assert loader.stats().bottleneck == "consumer", loader.stats()


@pytest.mark.parametrize("transport", ["h2", pytest.param("grpc", marks=pytest.mark.night)])
@pytest.mark.parametrize("ask", ["rows", "status"])
def test_a_frozen_server_is_given_up_after_the_time_asked_for(
    real: Cache, connect: Callable[..., DataCache], monkeypatch: pytest.MonkeyPatch, ask: str, transport: str
) -> None:
    """The time until the first sign of trouble counts, and the head has no second deadline."""
    monkeypatch.setattr(connection, "_SILENT_SECONDS", 0.75)
    options = client._CHANNEL  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(client, "_CHANNEL", [(name, SOONER.get(name, value)) for name, value in options])
    cache = connect(real.endpoint, retry_seconds=3.0, transport=transport)
    table = cache.table()
    assert table[3]["id"] == 3
    pulse(real, signal.SIGSTOP)
    time.sleep(0.2)  # a signal takes effect a little later
    begun = time.monotonic()
    try:
        with pytest.raises(UnreachableError, match=r"retry_seconds = 3"):
            table[4] if ask == "rows" else cache.status()
        assert time.monotonic() - begun < 3 + 2.5  # a second deadline would add 3
    finally:
        pulse(real, signal.SIGCONT)
    assert table[5]["id"] == 5
