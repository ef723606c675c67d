# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Worlds that change between steps: every committed step is one global batch of the order, whoever reads it."""

from __future__ import annotations

import gc
import os
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.deadline import eventually
from small import small_cache, steps_of

from kubeflow_datacache import DataCache, Loader, World, mix
from kubeflow_datacache.h2.shared import Shared

pytest.importorskip("torch")
from kubeflow_datacache.torch import StreamingDataLoader, StreamingDataset
from kubeflow_datacache.torch.torchft import Follow

ROWS, GROUP, MOST = 3_216, 8, 8
OPTIONS: dict[str, Any] = {"global_batch_size": GROUP, "seed": 7, "tail": "keep"}
COLUMNS: dict[str, Any] = {"columns": ["id"], "prefetch_bytes": 1 << 20, "world": World()}


@pytest.fixture(scope="module")
def endpoint(server: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cache of a table of whole steps."""
    with small_cache(server, tmp_path_factory.mktemp("small"), ROWS) as one:
        yield one


class Replica:
    """A replica with torchft's Manager, as far as Follow sees it. rank: None while it heals."""

    def __init__(self, loader: Any, step: int = 0) -> None:
        self.rank: int | None = 0
        self.size, self.step = 1, step
        self.batches = Follow(loader, self)

    def current_step(self) -> int:
        """The number of committed steps."""
        return self.step

    def participating_rank(self) -> int | None:
        """The rank in the quorum."""
        return self.rank

    def num_participants(self) -> int:
        """The replicas in the quorum."""
        return self.size


def history(
    make: Callable[[], Loader], rng: random.Random, begin: int, steps: int, change: float
) -> tuple[list[list[int]], int]:
    """Runs quorums at random; returns the ids of each committed step from `begin` on, and how often they changed."""
    replicas = [Replica(make(), begin) for _ in range(MOST)]
    alive, order, changes, step = replicas[:1], list[list[int]](), 0, begin
    while step < begin + steps:
        if rng.random() < change:
            alive, changes = rng.sample(replicas, rng.randint(1, MOST)), changes + 1
        for rank, replica in enumerate(alive):
            replica.rank, replica.size, replica.step = rank, len(alive), step
        # A replica outside the quorum recovers: it reads the step without a rank, with weight 0.
        if rng.random() < change / 4:
            healing = rng.choice([one for one in replicas if one not in alive] or [Replica(make(), step)])
            healing.rank, healing.size, healing.step = None, len(alive), step
            assert healing.batches.next().weight == 0
        read = [replica.batches.next() for replica in alive]
        assert sum(batch.num_rows * batch.weight for batch in read) == pytest.approx(len(alive))
        if rng.random() < change / 3:  # aborted: nobody commits, and another quorum reads it again
            alive, changes = rng.sample(replicas, rng.randint(1, MOST)), changes + 1
            continue
        order.append([i for batch in read for i in batch["id"].tolist()])
        step += 1
    return order, changes


def plain_loader(cache: DataCache) -> Loader:
    """A loader of all rows."""
    return cache.loader(**OPTIONS, **COLUMNS)


def filtered(cache: DataCache) -> Loader:
    """A loader of a third of the rows."""
    return cache.loader(**OPTIONS, **COLUMNS, filter="id < 1203")


def mixture(cache: DataCache) -> Loader:
    """A loader of two parts."""
    parts = {"low": (cache.select(filter="id < 1500"), 0.7), "high": (cache.select(filter="id >= 1500"), 0.3)}
    return mix(parts, **OPTIONS, **COLUMNS)


@pytest.mark.parametrize(
    ("make", "steps"), [(plain_loader, 400), (filtered, 150), (mixture, 60)], ids=["plain", "filter", "mixture"]
)
def test_any_history_of_worlds_is_one_epoch(
    endpoint: str,
    connect: Callable[..., DataCache],
    rng: random.Random,
    make: Callable[[DataCache], Loader],
    steps: int,
) -> None:
    cache = connect(endpoint)
    whole = make(cache)
    want = [batch["id"].to_pylist() for _ in range(2) for batch in whole][:steps]
    if make is plain_loader:
        assert want == steps_of(OPTIONS, 0, rows=ROWS)[:steps]
    order, changes = history(lambda: make(cache), rng, 0, steps, 0.25)
    assert order == want
    assert changes >= steps * 70 // 400, changes


def test_histories(endpoint: str, connect: Callable[..., DataCache], rng: random.Random, thorough: int) -> None:
    """Short histories, from a step at random; make soak runs 1,000."""
    cache = connect(endpoint)
    want = [step for epoch in range(2) for step in steps_of(OPTIONS, epoch, rows=ROWS)]
    for _ in range(8 * thorough):
        begin = rng.randrange(ROWS // GROUP + 5)
        order, _ = history(lambda: plain_loader(cache), rng, begin, 7, 0.5)
        assert order == want[begin : begin + 7]


def test_workers(endpoint: str, connect: Callable[..., DataCache]) -> None:
    """The workers of a StreamingDataLoader, which go on running."""
    dataset = StreamingDataset(connect(endpoint), **OPTIONS, **COLUMNS)
    loader = StreamingDataLoader(dataset, num_workers=2, persistent_workers=True)
    read = list[list[int]]()
    for step, world in enumerate([World(0, 1), World(1, 2), World(1, 2), World(2, 3), World(0, 1)]):
        loader.resize(world, None if step % 2 else step)
        batch = next(batches := iter(loader))
        assert batch.weight == world.size / GROUP
        read.append(batch["id"].tolist())
        if step == 2:
            loader.resize(world)  # nothing changes: the iteration goes on
            assert next(batches)["id"].tolist() == share(3, world)
            loader.resize(world, 3)
    worlds = [World(0, 1), World(1, 2), World(1, 2), World(2, 3), World(0, 1)]
    assert read == [share(step, world) for step, world in enumerate(worlds)]
    loader.resize(World(0, 1), ROWS // GROUP + 1)
    assert next(iter(loader))["id"].tolist() == steps_of(OPTIONS, 1, rows=ROWS)[1]


def share(step: int, world: World) -> list[int]:
    """The ids of a rank in a step of epoch 0."""
    return steps_of(OPTIONS, 0, world.rank, world.size, rows=ROWS)[step]


def test_the_weight_of_an_incomplete_step(cache: DataCache) -> None:
    """100 rows leave one for the last step of 9, of which padding does not count."""
    for tail in ("keep", "pad"):
        last = list(cache.loader(global_batch_size=9, tail=tail, world=World(2, 4)))[-1]
        assert (last.step, last.weight) == (11, 4 / 1)


def test_what_is_no_world(cache: DataCache) -> None:
    loader: Any = cache.loader(global_batch_size=9)
    with pytest.raises(TypeError, match=r"world = \(0, 2\): want World\(rank, size\)"):
        loader.resize((0, 2))
    with pytest.raises(ValueError, match="step = -1: want at least 0"):
        loader.resize(World(0, 2), -1)


def held() -> tuple[int, int, int]:
    """This process's threads, open files, and resident bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return threading.active_count(), len(os.listdir("/proc/self/fd")), pages * os.sysconf("SC_PAGE_SIZE")


def test_resizes_leave_nothing(
    endpoint: str,
    connect: Callable[..., DataCache],
    rng: random.Random,
    thorough: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A loader that is resized again and again, to read one batch each time; make soak does it 10,000 times."""
    # Calls that end before their stream is closed keep their memory, and its files, for later calls.
    monkeypatch.setattr(Shared, "leave", lambda _, memory: memory.close())
    loader = plain_loader(connect(endpoint))

    def resize(times: int) -> tuple[int, int, int]:
        for _ in range(times):
            size = rng.randint(1, MOST)
            loader.resize(World(rng.randrange(size), size), rng.randrange(ROWS // GROUP))
            next(iter(loader))
        loader.close()
        gc.collect()
        return held()

    resize(40)  # memory that is kept and used again
    threads, files, resident = resize(40)
    after = resize(80 * thorough)
    print(f"{80 * thorough} resizes: {(threads, files, resident)} before, {after} after")

    def few() -> tuple[int, int, int] | None:
        now = held()
        return now if now[0] <= threads and now[1] <= files else None

    after = eventually(f"{threads} threads and {files} files", few)  # closed streams end in threads of their own
    assert after[2] < resident + (48 << 20), f"{(after[2] - resident) >> 20} MiB more"
