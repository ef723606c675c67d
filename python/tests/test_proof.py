# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""verify: the rows that all ranks trained on are those of the epoch, each once. Ranks are threads with real loaders."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from kit.deadline import limit
from peer import Peer, Table

from kubeflow_datacache import Batch, DataCache, Loader, Proof, RowsError, World, mix, verify

Damage = Callable[[int, list[Batch]], list[Batch]]  # changes the batches that a rank trains on in an epoch


class Ranks:
    """Threads that gather values, as ranks do."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._values: dict[int, Any] = {}
        self._barrier = threading.Barrier(size)

    def gather(self, rank: int) -> Callable[[Any], list[Any]]:
        """The function of a rank."""

        def gather(value: Any) -> list[Any]:
            self._values[rank] = json.loads(json.dumps(value))
            self._barrier.wait(limit())
            values = [self._values[each] for each in range(self.size)]
            self._barrier.wait(limit())
            return values

        return gather

    def run(self, train: Callable[[int, Callable[[Any], list[Any]]], Any]) -> list[Any]:
        """Calls train(rank, gather) for all ranks at once."""
        with ThreadPoolExecutor(self.size) as threads:
            ranks = [threads.submit(train, rank, self.gather(rank)) for rank in range(self.size)]
            return [rank.result(limit()) for rank in ranks]


@pytest.mark.parametrize("tail", ["drop", "keep", "pad"])
@pytest.mark.parametrize("world", [1, 3])
def test_each_epoch_is_verified(cache: DataCache, world: int, tail: str) -> None:
    def train(rank: int, gather: Any) -> list[Any]:
        options: dict[str, Any] = {"tail": tail, "clump": 3, "world": World(rank, world)}
        loader = cache.loader(global_batch_size=8, seed=5, **options)
        check = verify(loader, group=gather)
        return [check(batch) for _ in range(3) for batch in loader]

    rows = 96 if tail == "drop" else 100
    for results in Ranks(world).run(train):
        assert [one for one in results if one is not None] == [(epoch, rows, 0) for epoch in range(3)]


def test_a_mixture_is_verified(cache: DataCache, connect: Callable[..., DataCache]) -> None:
    with Peer(Table(30, [(0, 30)], first=1000)) as other:
        parts = {"web": (cache, 0.7), "code": (connect(other.endpoint), 0.3)}

        def train(rank: int, gather: Any) -> Any:
            loader = mix(parts, global_batch_size=10, seed=1, until="all", world=World(rank, 2))
            check = verify(loader, group=gather)
            return [check(batch) for batch in loader][-1], loader.steps

        for verified, steps in Ranks(2).run(train):
            assert verified == (0, steps * 10, 0)


def test_a_resume_with_other_ranks(cache: DataCache, rng: random.Random) -> None:
    for _ in range(5):
        before, after, at = rng.randint(1, 3), rng.randint(1, 3), rng.randint(1, 11)
        carried = rng.random() < 0.7

        def begin(rank: int, gather: Any, world: int = before, at: int = at) -> tuple[Any, Any]:
            loader, check = _pair(cache, world, rank, gather)
            for batch in loader:
                check(batch)
                if batch.step + 1 == at:
                    break
            return loader.state_dict(), check.state_dict()

        saved = Ranks(before).run(begin)
        assert all(one == saved[0] for one in saved), "states are the same on all ranks"

        def resume(rank: int, gather: Any, world: int = after, state: Any = saved[0], carried: bool = carried) -> Any:
            loader, check = _pair(cache, world, rank, gather)
            loader.load_state_dict(state[0])
            if carried:
                check.load_state_dict(state[1])
            return [check(batch) for batch in loader][-1]

        for verified in Ranks(after).run(resume):
            assert verified == ((0, 96, 0) if carried else (0, 96 - 8 * at, at))


def _pair(cache: DataCache, world: int, rank: int, gather: Any) -> tuple[Loader, Proof]:
    loader = cache.loader(global_batch_size=8, seed=5, world=World(rank, world))
    return loader, verify(loader, group=gather)


def _train(loader: Loader, check: Proof) -> None:
    for batch in loader:
        check(batch)


def _without(rank: int, batches: list[Batch]) -> list[Batch]:
    return [batch for batch in batches if rank != 1 or batch.step not in (3, 4, 9)]


def _again(rank: int, batches: list[Batch]) -> list[Batch]:
    return batches if rank else [*batches[:6], batches[5], *batches[6:]]


def _another(rank: int, batches: list[Batch]) -> list[Batch]:
    """As many rows as due."""
    return batches if rank else [*batches[:6], batches[5], *batches[7:]]


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (_without, "84 rows were trained on, where 96 .*: rank 1: steps 3 to 4 never, step 9 never$"),
        (_again, "100 rows were trained on, where 96 .*: rank 0: step 5 2 times$"),
        (_another, "96 rows were trained on, where 96 .*: rank 0: step 5 2 times, step 6 never$"),
    ],
)
def test_rows_that_are_missing_or_doubled(cache: DataCache, damage: Damage, says: str) -> None:
    def train(rank: int, gather: Any) -> None:
        loader, check = _pair(cache, 2, rank, gather)
        for batch in damage(rank, list(loader)):
            check(batch)

    with pytest.raises(RowsError, match=f"^epoch 0: {says}"):
        Ranks(2).run(train)


def test_ranks_that_read_the_same_rows(cache: DataCache) -> None:
    def train(rank: int, gather: Any) -> None:
        _train(*_pair(cache, 1, 0, gather))

    with pytest.raises(RowsError, match="2 processes train, and their loaders read as rank 0 of 1, rank 0 of 1: each"):
        Ranks(2).run(train)


def test_a_resume_at_another_step(cache: DataCache) -> None:
    loader, check = _pair(cache, 1, 0, None)
    for batch in loader:
        check(batch)
        if batch.step == 4:
            break
    state, sums = loader.state_dict(), check.state_dict()
    for at, says in ((7, "steps 5 to 6 never"), (3, "steps 3 to 4 2 times")):
        loader, check = _pair(cache, 1, 0, None)
        loader.load_state_dict({**state, "next_step": at})
        check.load_state_dict(json.loads(json.dumps(sums)))
        with pytest.raises(RowsError, match=f"rank 0: {says}$"):
            _train(loader, check)


def test_an_epoch_that_was_left(cache: DataCache) -> None:
    loader, check = _pair(cache, 1, 0, None)
    batches: Iterator[Batch] = iter(loader)
    check(next(batches))
    saved = check.state_dict()
    loader.set_epoch(1)
    batch = next(iter(loader))
    with pytest.raises(RowsError, match="epoch 1 begins, and of epoch 0 no step after 0 was trained on"):
        check(batch)
    check = verify(loader)
    check.load_state_dict(saved)
    with pytest.raises(RowsError, match="epoch 1 begins, and of epoch 0 no step after 0 was trained on"):
        check(batch)


def test_what_is_no_batch(cache: DataCache) -> None:
    loader, check = _pair(cache, 1, 0, None)
    with pytest.raises(TypeError, match="a batch of type dict does not tell its step"):
        check({"id": [1]})
    loader, check = _pair(cache, 2, 0, None)
    with pytest.raises(RuntimeError, match="one of 2 ranks, and neither"):
        _train(loader, check)
