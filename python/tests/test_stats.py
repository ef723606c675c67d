# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Stats: the stage that is slow is named, and the stages add up to the wall time."""

from __future__ import annotations

import json
import time
from typing import Any

import pyarrow as pa
import pytest
from peer import Peer

from kubeflow_datacache import DataCache, Loader, World, merge
from kubeflow_datacache.clock import STAGES, Clock

SLOW = 0.01  # seconds a message or batch: far above what the rest takes


def drain(loader: Loader, consumer: float = 0.0) -> float:
    """Reads the epoch and returns the wall time of the loop."""
    begun = time.perf_counter()
    for _ in loader:
        time.sleep(consumer)
    return time.perf_counter() - begun


@pytest.mark.parametrize("stage", [s for s in STAGES if s != "decode"])
def test_the_slow_stage_is_named(peer: Peer, cache: DataCache, stage: str) -> None:
    words: dict[str, Any] = {"global_batch_size": 5, "world": World(0, 1), "shuffle": False}
    if stage == "transform":
        words |= {"transform": _slow, "transform_threads": 1}
    loader = cache.loader(**words)
    peer.faults.head_seconds = 0.3 if stage == "head" else 0
    peer.faults.server_seconds = SLOW if stage == "server" else 0
    peer.faults.wire_seconds = SLOW if stage == "wire" else 0
    wall = drain(loader, SLOW if stage == "consumer" else 0)
    stats = loader.stats()
    assert max(stats.seconds, key=lambda s: stats.seconds[s]) == stage, str(stats)
    assert stats.wall == pytest.approx(wall, rel=0.02)
    assert stage == "consumer" or stats.slowest == stage


def test_slow_merging_is_named(cache: DataCache, monkeypatch: pytest.MonkeyPatch) -> None:
    real = merge.concatenate

    def slow(parts: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
        time.sleep(SLOW)
        return real(parts, schema)

    monkeypatch.setattr(merge, "concatenate", slow)
    loader = cache.loader(global_batch_size=9, shuffle=False, world=World(0, 1))
    wall = drain(loader)
    assert loader.stats().slowest == "decode", str(loader.stats())
    assert loader.stats().wall == pytest.approx(wall, rel=0.02)


def _slow(rows: pa.RecordBatch) -> pa.RecordBatch:
    time.sleep(SLOW)
    return rows


def test_a_head_that_restarts_in_mid_epoch_is_the_heads_time(peer: Peer, cache: DataCache) -> None:
    peer.faults.breaks = [3]
    loader = cache.loader(global_batch_size=9, seed=1, prefetch_bytes=1, world=World(0, 1))
    batches = iter(loader)
    peer.faults.head_seconds = 0.2
    assert len(list(batches)) == 11
    assert loader.stats().seconds["head"] > 0.3
    assert loader.stats().reconnects == 1


def test_the_clock_splits_all_time() -> None:
    now = [0.0]
    clock = Clock(lambda: now[0])

    def after(seconds: float) -> None:
        now[0] += seconds

    after(5)  # before the iteration: nobody's
    clock.begin()
    after(1)
    clock.wait()
    after(2)  # the producer begins at the head
    clock.produce(3)
    after(4)  # data node 3
    clock.at_head(3, True)
    after(8)
    clock.at_head(3, False)
    after(4)
    clock.settle(3, 0.25)
    clock.produce("decode")
    after(16)
    clock.resume()
    after(32)
    clock.wait("transform")
    after(64)
    clock.resume()
    clock.end()
    after(128)
    assert clock.seconds() == {"head": 10, "server": 2, "wire": 6, "decode": 16, "transform": 64, "consumer": 33}


def test_stats_as_table_dict_and_prometheus(cache: DataCache) -> None:
    loader = cache.loader(global_batch_size=10, tail="keep", world=World(0, 1))
    for _ in loader:
        pass
    stats = loader.stats()
    assert (stats.steps, stats.rows) == (10, 100)
    assert json.loads(json.dumps(stats.as_dict()))["rows"] == 100
    for stage in STAGES:
        assert f"\n{stage} " in str(stats)
    text = stats.prometheus(job='a"b')
    assert 'datacache_loader_rows_total{job="a\\"b"} 100\n' in text
    assert 'datacache_loader_seconds_total{stage="wire",job="a\\"b"} ' in text
    names = [line.split("{")[0] for line in text.splitlines() if not line.startswith("#")]
    assert all(f"# TYPE {name} " in text for name in names)


def test_queue_depths_are_bounded(peer: Peer, cache: DataCache) -> None:
    peer.table.message_rows = 2
    loader = cache.loader(global_batch_size=4, prefetch_bytes=800, world=World(0, 1))
    batches = iter(loader)
    next(batches)
    time.sleep(0.3)  # whatever is read ahead is there now
    stats = loader.stats()
    message = 2 * 64
    assert 0 < stats.raw_bytes <= 600 + 3 * message
    assert stats.ready_bytes <= max(200, 2 * message)
    assert stats.raw_rows > 0
    loader.close()


def test_the_progress_bar(cache: DataCache, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in cache.loader(global_batch_size=10, progress=True, world=World(0, 1)):
        pass
    said = capsys.readouterr()
    assert said.out == ""
    assert "epoch 0 [########################] 10/10 steps" in said.err
    assert said.err.endswith("\n")
