# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Stats name the slow stage, and the stages add up to the wall time."""

from __future__ import annotations

import io
import json
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from kit.deadline import Wait, pause
from peer import Peer

from kubeflow_datacache import DataCache, Loader, Stats, World
from kubeflow_datacache.export import Collector
from kubeflow_datacache.fetch import merge
from kubeflow_datacache.monitoring.stage_timer import Stage, StageTimer
from kubeflow_datacache.monitoring.stats import Depth
from kubeflow_datacache.monitoring.text_progress import TextProgress

Connect = Callable[..., DataCache]
LOUDER = (0.01, 0.05, 0.25)  # delays in seconds: a busy machine hides the short ones
ALONE = World(0, 1)


def drain(loader: Loader, consumer: float = 0.0) -> float:
    """Reads the epoch and returns the wall time of the loop."""
    begun = time.perf_counter()
    for _ in loader:
        pause(consumer)
    return time.perf_counter() - begun


def names(stage: Stage, run: Callable[[float], tuple[Stats, float]]) -> None:
    """Asserts that run(delay in seconds) returns stats that name the stage as bottleneck and add up to the wall."""
    for seconds in LOUDER:
        stats, wall = run(seconds)
        if stats.bottleneck == stage and abs(stats.wall - wall) <= 0.02 * wall:
            return
        print(f"with a delay of {seconds} s in {stage}, wall {wall}:\n{stats}")
    pytest.fail(f"no delay in {stage} was named, with a wall that is right")


@pytest.mark.parametrize("stage", ["head", "server", "consumer"])
def test_a_delay_is_named(peer: Peer, connect: Connect, stage: Stage) -> None:
    def run(seconds: float) -> tuple[Stats, float]:
        loader = connect(peer.endpoint).loader(global_batch_size=5, shuffle=False, world=ALONE)
        peer.faults.head_seconds = 20 * seconds if stage == "head" else 0
        peer.faults.server_seconds = seconds if stage == "server" else 0
        wall = drain(loader, seconds if stage == "consumer" else 0)
        peer.faults.head_seconds = 0
        return loader.stats(), wall

    names(stage, run)


@pytest.mark.parametrize("threads", [0, 1])
def test_a_slow_transform_is_named(peer: Peer, connect: Connect, threads: int) -> None:
    def run(seconds: float) -> tuple[Stats, float]:
        def slow(rows: pa.RecordBatch) -> pa.RecordBatch:
            pause(seconds)
            return rows

        loader = connect(peer.endpoint).loader(
            global_batch_size=5, transform=slow, transform_threads=threads, world=ALONE
        )
        wall = drain(loader)
        return loader.stats(), wall

    names("transform", run)


def test_slow_merging_is_named(peer: Peer, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    real = merge.concatenate

    def run(seconds: float) -> tuple[Stats, float]:
        def slow(parts: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
            pause(seconds)
            return real(parts, schema)

        monkeypatch.setattr(merge, "concatenate", slow)
        loader = connect(peer.endpoint).loader(global_batch_size=9, shuffle=False, world=ALONE)
        wall = drain(loader)
        return loader.stats(), wall

    names("decode", run)


def test_between_two_looks_the_stages_add_up_to_the_time_between_them(peer: Peer, cache: DataCache) -> None:
    peer.faults.server_seconds = 0.005
    before, looks = time.perf_counter(), 0.0
    loader = cache.loader(global_batch_size=5, prefetch_bytes=1, world=ALONE)
    for _ in loader:
        looks = loader.stats().wall
        assert looks <= time.perf_counter() - before
        inner = time.perf_counter()
        pause(0.005)
        inner = time.perf_counter() - inner
        assert loader.stats().wall - looks >= inner, "the consumer's time is counted while it runs"
    assert looks > 0


def test_a_head_that_restarts_in_mid_epoch_is_the_heads_time(peer: Peer, cache: DataCache) -> None:
    def run(seconds: float) -> bool:
        peer.faults.breaks, peer.faults.head_seconds = [3], 0.0
        loader = cache.loader(global_batch_size=9, seed=1, prefetch_bytes=1, world=ALONE)
        batches = iter(loader)
        peer.faults.head_seconds = seconds
        assert len(list(batches)) == 11
        assert loader.stats().reconnects == 1
        return loader.stats().seconds["head"] > 1.5 * seconds

    assert any(run(seconds) for seconds in (0.2, 1, 5)), "the wait for the head is not its time"


def test_servers_that_do_not_say_what_they_do(peer: Peer, cache: DataCache) -> None:
    peer.restart([(0, 100)])

    def run(seconds: float) -> bool:
        peer.faults.silent, peer.faults.server_seconds = True, seconds
        loader = cache.loader(global_batch_size=5, shuffle=False, world=ALONE)
        drain(loader)
        spent = loader.stats().seconds
        return spent["server"] > spent["wire"]

    assert any(run(seconds) for seconds in LOUDER), "the kernel says that nothing arrives"


@pytest.mark.parametrize(
    ("busy", "server", "wire"),
    [(0.0, 0, 4), (0.25, 0.25, 3.75), (3.0, 3, 1), (4.0, 4, 0), (9.0, 4, 0), (math.inf, 4, 0)],
)
def test_a_message_divides_the_wait_for_it(busy: float, server: float, wire: float) -> None:
    now = [0.0]
    timer = StageTimer(lambda: now[0])
    timer.start()
    timer.set_producer(3)
    timer.consumer_waits()
    now[0] = 4.0
    assert timer.seconds()["server"] == 4, "until a message says otherwise"
    timer.message_received(3, busy)
    timer.stop()
    spent = timer.seconds()
    assert (spent["server"], spent["wire"]) == (server, wire)


@pytest.mark.parametrize(
    ("busy", "transfer", "looks", "server"),
    [
        (0.0, math.inf, [], 0.0),  # nothing is known of the server: the time counts as the network's
        (0.0, 1.0, [], 8.5),  # silent until the first byte, but for a round trip
        (9.5, 10.0, [], 9.5),  # the server says so
        (0.0, 10.0, [True, False, True], 5.5),  # silent for 6 of 10 s
        (0.0, 10.0, [False] * 3, 0.0),  # the whole time, something arrived
    ],
)
def test_silence_is_the_servers(busy: float, transfer: float, looks: list[bool], server: float) -> None:
    """A wait of 10 s with looks every 3 s, on a network with a round trip of 0.5 s."""
    now = 0.0
    timer = StageTimer(lambda: now)
    timer.start()
    timer.set_producer(3)
    timer.consumer_waits()
    for silent in looks:
        now += 3.0
        timer.sample(3, silent=silent)
    now = 10.0
    timer.message_received(3, busy, transfer=transfer, round_trip=0.5)
    seconds = timer.seconds()
    assert (seconds["server"], seconds["wire"]) == (server, 10.0 - server)


def test_the_timer_accounts_for_all_time() -> None:
    now = [0.0]
    timer = StageTimer(lambda: now[0])

    def after(seconds: float) -> None:
        now[0] += seconds

    after(5)  # before the iteration: not counted
    timer.start()
    after(1)
    timer.consumer_waits()
    after(2)  # the producer's first stage is "head"
    timer.set_producer(3)
    after(4)  # data node 3
    timer.set_asking_head(3, True)
    after(8)
    timer.set_asking_head(3, False)
    after(4)
    timer.message_received(3, 3.0)
    after(1)
    timer.message_received(3, 100.0)  # busy for longer than the consumer waited: only the wait counts
    after(2)
    timer.message_received(3, math.inf)
    timer.set_producer("decode")
    after(16)
    timer.consumer_resumes()
    after(32)
    timer.consumer_waits("transform")
    after(64)
    timer.consumer_resumes()
    timer.stop()
    after(128)
    assert timer.seconds() == {"head": 10, "server": 6, "wire": 5, "decode": 16, "transform": 64, "consumer": 33}


def stats_of(**changed: Any) -> Stats:
    """Stats of a loader that waited for the network."""
    seconds = {"head": 0.5, "server": 1.0, "wire": 6.0, "decode": 0.25, "transform": 0.0, "consumer": 2.25}
    options: dict[str, Any] = {
        "seconds": seconds,
        "epoch": 3,
        "next_step": 1200,
        "steps": 1200,
        "rows": 2_400_000,
        "bytes": 5_000_000_000,
        "raw_queue_depth": Depth(100, 1_000_000),
        "prefetch_queue_depth": Depth(7, 70_000),
        "reconnects": 1,
    }
    return Stats(**{**options, **changed})


def test_stats_print_as_a_table() -> None:
    assert str(stats_of()).splitlines() == [
        "stage        seconds   share  what the loop waited for",
        "head           0.500    5.0%  asking the head, which loads or restarts",
        "server         1.000   10.0%  data nodes making rows ready",
        "wire           6.000   60.0%  rows on their way  <- bottleneck",
        "decode         0.250    2.5%  merging rows into batches",
        "transform      0.000    0.0%  the transform",
        "consumer       2.250   22.5%  your own code between batches",
        "wall          10.000  100.0%",
        "returned: 1,200 batches, 2,400,000 rows, 5,000.0 MB (500.0 MB/s)",
        "position: epoch 3, next step 1,200; reconnects: 1",
        "queues:   raw 100 rows, 1.0 MB; prefetch 7 rows, 0.1 MB",
    ]


def test_stats_of_a_loader_that_has_not_begun(cache: DataCache) -> None:
    stats = cache.loader(global_batch_size=10, world=ALONE).stats()
    assert (stats.wall, stats.waited, stats.steps) == (0, 0, 0)
    assert "bottleneck" not in str(stats)


def test_stats_as_a_dict() -> None:
    told = json.loads(json.dumps(stats_of().as_dict()))
    assert (told["wall"], told["waited"], told["bottleneck"]) == (10.0, 7.75, "wire")
    assert told["seconds"]["head"] == 0.5
    assert told["raw_queue_depth"] == {"rows": 100, "bytes": 1_000_000}
    assert told["prefetch_queue_depth"] == {"rows": 7, "bytes": 70_000}


def test_stats_since_an_earlier_look() -> None:
    seconds = {**stats_of().seconds, "transform": 4.0}
    since = stats_of(seconds=seconds, rows=2_400_100, epoch=4, next_step=2).since(stats_of())
    assert (since.wall, since.bottleneck, since.rows, since.steps) == (4.0, "transform", 100, 0)
    assert (since.epoch, since.next_step, since.raw_queue_depth.rows) == (4, 2, 100)


def test_stats_as_prometheus_text() -> None:
    text = stats_of().prometheus(job='a"b\\c\nd')
    label = r'job="a\"b\\c\nd"'
    assert f"datacache_loader_rows_total{{{label}}} 2400000\n" in text
    assert f'datacache_loader_seconds_total{{{label},stage="wire"}} 6.0\n' in text
    assert f"datacache_loader_prefetch_queue_bytes{{{label}}} 70000\n" in text
    families: list[str] = []
    for line in text.splitlines():
        word = line.split()
        if word[1] == "HELP":
            families.append(word[2])
        elif word[1] == "TYPE":
            assert word[2:] == [families[-1], "counter" if word[2].endswith("_total") else "gauge"]
        else:
            assert line.startswith(families[-1] + "{"), "samples stand below their own family"
    assert len(families) == len(set(families)) == 12
    assert "datacache_loader_epoch 3\n" in stats_of().prometheus(), "no braces without labels"


def test_prometheus_client_shows_the_same() -> None:
    exposition = pytest.importorskip("prometheus_client.exposition")
    registry = pytest.importorskip("prometheus_client").CollectorRegistry()
    registry.register(Collector(stats_of, job="bert"))

    def samples(text: str) -> dict[str, float]:
        lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in lines}

    assert samples(exposition.generate_latest(registry).decode()) == samples(stats_of().prometheus(job="bert"))


def test_queue_depths_are_bounded(peer: Peer, cache: DataCache) -> None:
    peer.table.message_rows = 2
    loader = cache.loader(global_batch_size=4, prefetch_bytes=800, world=ALONE)
    batches = iter(loader)
    next(batches)
    message = 2 * 64
    for stats in _looks(loader):
        raw, ready = stats.raw_queue_depth, stats.prefetch_queue_depth
        assert raw.bytes <= 600 + 3 * message
        assert ready.bytes <= max(200, 2 * message)
        assert bool(raw.rows) == bool(raw.bytes)
        assert bool(ready.rows) == bool(ready.bytes)
        if raw.rows and ready.rows:
            break
    loader.close()
    assert loader.stats().raw_queue_depth == loader.stats().prefetch_queue_depth == (0, 0)


def _looks(loader: Loader) -> Iterator[Stats]:
    """Yields a loader's stats repeatedly; fails at the deadline."""
    wait = Wait()
    while not wait.over():
        yield loader.stats()
        pause(0.01)
    pytest.fail(f"nothing was read ahead:\n{loader.stats()}")


class Terminal(io.StringIO):
    """A fake terminal."""

    def isatty(self) -> bool:
        """Returns True, as a terminal does."""
        return True


def test_progress_on_a_terminal() -> None:
    now, out, begin = [100.0], Terminal(), stats_of()
    bar = TextProgress("epoch 3", 2400, begin, out, lambda: now[0])
    assert not bar.due()
    now[0] += 10
    assert bar.due()
    wire = {**begin.seconds, "wire": 15.0, "consumer": 3.25}
    bar.update(stats_of(next_step=1500, rows=begin.rows + 30_000, seconds=wire))
    assert not bar.due()
    assert out.getvalue() == (
        "\repoch 3 [###############         ] 1,500/2,400 steps, 3,000 rows/s, 0:30 left, bottleneck wire (90%)\x1b[K"
    )
    now[0] += 3600
    bar.close(stats_of(next_step=2400, rows=begin.rows + 30_000, seconds=wire))
    assert out.getvalue().endswith("2,400/2,400 steps, 8 rows/s, took 1:00:10, bottleneck wire (90%)\x1b[K\n")


def test_progress_in_a_log_is_plain_lines() -> None:
    now, out, begin = [100.0], io.StringIO(), stats_of(next_step=0)
    bar = TextProgress("epoch 3", 2400, begin, out, lambda: now[0])
    now[0] += 9
    assert not bar.due()
    now[0] += 1
    assert bar.due()
    bar.update(begin)
    bar.close(begin)
    line = "epoch 3 0%, 0/2,400 steps, 0 rows/s, ?:?? left, bottleneck head (0%)\n"
    assert out.getvalue() == line * 2


@pytest.mark.parametrize(("rank", "shown"), [(0, True), (1, False)])
def test_progress_is_rank_0s(cache: DataCache, capsys: pytest.CaptureFixture[str], rank: int, shown: bool) -> None:
    for _ in cache.loader(global_batch_size=10, progress=True, world=World(rank, 2)):
        pass
    captured = capsys.readouterr()
    assert captured.out == ""
    assert ("epoch 0 100%, 10/10 steps" in captured.err) == shown
