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
from kit.deadline import eventually, limit, pause
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


def named(delays: tuple[float, ...], run: Callable[[float], bool]) -> None:
    """Asserts that run(seconds) finds what is slow, at one of these delays: a busy machine hides the short ones."""
    assert any(run(seconds) for seconds in delays), f"no delay was found, of {delays} s"


def pulse(real: Cache, number: signal.Signals) -> None:
    """Sends a signal to the server."""
    for process in real.processes.values():
        process.send_signal(number)


def stop(real: Cache) -> None:
    """Stops the server, all its threads: a signal takes effect a little later."""
    pulse(real, signal.SIGSTOP)
    for process in real.processes.values():
        tasks = Path(f"/proc/{process.pid}/task")
        eventually(
            "the server to stop",
            lambda tasks=tasks: all(
                file.read_text().rpartition(")")[2].split()[0] == "T" for file in tasks.glob("*/stat")
            ),
        )


@contextlib.contextmanager
def frozen(real: Cache, seconds: float) -> Generator[None]:
    """Stops the server for some seconds; at the end it runs."""
    stop(real)
    timer = threading.Timer(seconds, pulse, (real, signal.SIGCONT))
    timer.start()
    try:
        yield
    finally:
        timer.join()


@contextlib.contextmanager
def short_of_cpu(real: Cache, seconds: float) -> Generator[None]:
    """Stops the server for some seconds after every 10 ms, as a CPU limit does."""
    end = threading.Event()

    def run() -> None:
        while not end.wait(0.01):
            pulse(real, signal.SIGSTOP)
            end.wait(seconds)
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
    def run(stopped: float) -> bool:
        loader = connect(real.endpoint).loader(**SMALL)
        batches = read(loader, 10)
        before = loader.stats().seconds
        with frozen(real, stopped):
            for _ in range(100):
                next(batches)
        print(loader.stats())
        seconds = loader.stats().seconds
        loader.close()
        server, wire = (seconds[stage] - before[stage] for stage in ("server", "wire"))
        return server > 2 / 3 * stopped and wire < stopped / 5

    named((1.5, 6, 24), run)


def test_a_server_short_of_cpu(real: Cache, connect: Callable[..., DataCache]) -> None:
    def run(seconds: float) -> bool:
        loader = connect(real.endpoint).loader(**SMALL)
        read(loader, 10)
        with short_of_cpu(real, seconds):
            drained = sum(1 for _ in loader)
        assert drained == ROWS // 20 - 10
        print(stats := loader.stats())
        return stats.bottleneck == "server" and stats.seconds["server"] > 2 * stats.seconds["wire"]

    named((0.09, 0.3, 1.0), run)


def test_a_slow_network(real: Cache, connect: Callable[..., DataCache], monkeypatch: pytest.MonkeyPatch) -> None:
    cache = connect(real.endpoint)
    stream = cache.stream

    def run(seconds: float) -> bool:
        with contextlib.ExitStack() as wires:

            def behind(location: str, ticket: bytes, *sizes: int) -> Any:
                wire = wires.enter_context(SlowWire(urlsplit(location).port or 0, seconds))
                return stream(f"grpc://127.0.0.1:{wire.port}", ticket, *sizes)

            monkeypatch.setattr(cache, "stream", behind)
            loader = cache.loader(**SMALL)
            read(loader, 12)
            print(stats := loader.stats())
            loader.close()
            return stats.bottleneck == "wire"

    named((0.001, 0.005, 0.02), run)


def test_a_slow_client(real: Cache, connect: Callable[..., DataCache]) -> None:
    def run(seconds: float) -> bool:
        loader = connect(real.endpoint).loader(**SMALL)
        for _ in read(loader, 120):
            pause(seconds)
        print(loader.stats())
        return loader.stats().bottleneck == "consumer"

    named((0.01, 0.05, 0.25), run)


@pytest.mark.parametrize("transport", ["h2", pytest.param("grpc", marks=pytest.mark.night)])
@pytest.mark.parametrize("ask", ["rows", "status"])
def test_a_frozen_server_is_given_up_after_the_time_asked_for(
    real: Cache, connect: Callable[..., DataCache], monkeypatch: pytest.MonkeyPatch, ask: str, transport: str
) -> None:
    """The time until the first sign of trouble counts, and the head has no second deadline."""
    monkeypatch.setattr(connection, "_SILENT_SECONDS", 0.75)
    options = client._CHANNEL  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(client, "_CHANNEL", [(name, SOONER.get(name, value)) for name, value in options])
    cache = connect(real.endpoint, transport=transport)
    table = cache.table()

    def run(seconds: float) -> bool:
        cache.retry_seconds = limit()
        assert table[3]["id"] == 3
        cache.retry_seconds = seconds
        stop(real)
        begun = time.monotonic()
        try:
            with pytest.raises(UnreachableError, match=f"retry_seconds = {seconds}"):
                table[4] if ask == "rows" else cache.status()
            return time.monotonic() - begun < 1.8 * seconds  # a second deadline would make it twice as long
        finally:
            pulse(real, signal.SIGCONT)

    named((3, 12, 48), run)
    cache.retry_seconds = limit()
    assert table[5]["id"] == 5
