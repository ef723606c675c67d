# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Unit tests: transfer between processes, positions of loaders, and statistics."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pyarrow as pa
import pytest
from order import Epoch as Oracle
from peer import Peer

from kubeflow_datacache import DataCache, StateError, TransformError, World

pytest.importorskip("torch")
import torch
from torch.utils.data import DataLoader

from kubeflow_datacache.monitoring.stage_timer import STAGES, Stage
from kubeflow_datacache.monitoring.stats import Depth, Stats
from kubeflow_datacache.torch import Columns, StreamingDataLoader, StreamingDataset, TensorBatch
from kubeflow_datacache.torch.bundle import BundledDataset
from kubeflow_datacache.torch.torchdata_state import loader_state_of
from kubeflow_datacache.torch.worker_stats import WorkerStats

OPTIONS: dict[str, Any] = {"global_batch_size": 7, "seed": 5, "world": World(0, 1)}


def sent(value: Any) -> Any:
    """The value after a transfer to another process."""
    return pickle.loads(ForkingPickler.dumps(value))


def test_columns_are_sent_in_one_block_of_shared_memory() -> None:
    text = pa.array(["a", "b", "c", None] * 1000)
    columns = {
        "whole": torch.arange(6),
        "every second": torch.arange(12)[::2],
        "flags": torch.tensor([True, False]),
        "none": torch.empty(0, 3),
        "half": torch.ones(3, 5, dtype=torch.float16),
        "scalar": torch.tensor(7),
        "text": text.slice(2, 2),
        "name": "as it is",
    }
    batch = sent(TensorBatch(columns, epoch=1, step=2, num_rows=6, padded=2))
    assert isinstance(batch, TensorBatch)
    assert list(batch) == list(columns)
    assert (batch.epoch, batch.step, batch.num_rows) == (1, 2, 6)
    assert batch.valid.tolist() == [True] * 4 + [False] * 2
    for name, column in columns.items():
        if isinstance(column, torch.Tensor):
            assert batch[name].dtype == column.dtype
            assert torch.equal(batch[name], column)
            assert batch[name].is_shared()
    assert batch["text"].to_pylist() == ["c", None]
    assert batch["text"].get_total_buffer_size() < 200, "the rows around it stayed behind"
    assert batch["name"] == "as it is"
    assert len({batch[name].untyped_storage().data_ptr() for name in ("whole", "flags", "half")}) == 1
    again = copy.copy(batch)
    assert (type(again), again.step, list(again)) == (TensorBatch, 2, list(columns))
    assert sent(Columns()) == {}


def test_bundles_are_sent_with_all_their_steps(cache: DataCache) -> None:
    dataset = StreamingDataset(cache, **OPTIONS, tail="pad", columns=["id", "name"])
    bundles = [sent(bundle) for bundle in BundledDataset(dataset, 10_000)]
    oracle = Oracle(rows=100, seed=5, global_batch=7, tail="pad").share()
    steps = [step for bundle in bundles for step in bundle.steps()]
    assert len(bundles) < len(steps) == len(oracle)
    for step, want in zip(steps, oracle, strict=True):
        assert (step.step, step.rows) == (want.number, len(want.rows))
        assert step.item["id"].tolist() == want.rows
        assert step.item["name"].to_pylist() == [f"row {row}" for row in want.rows]
        assert step.item.valid.tolist() == want.valid


def doubled(rows: pa.RecordBatch) -> dict[str, Any]:
    """A transform."""
    return {"twice": torch.from_numpy(rows["id"].to_numpy() * 2)}


@pytest.mark.parametrize(
    ("transform", "read"),
    [
        (doubled, lambda item: (item["twice"] // 2).tolist()),
        (lambda rows: rows.select(["id"]), lambda item: item["id"].tolist()),
        (lambda rows: rows["id"].to_pylist(), lambda item: item),
    ],
    ids=["columns", "rows", "anything"],
)
def test_results_of_transforms_are_sent(cache: DataCache, transform: Any, read: Callable[[Any], list[int]]) -> None:
    dataset = StreamingDataset(cache, **OPTIONS, transform=transform)
    want = [step.rows for step in Oracle(rows=100, seed=5, global_batch=7, tail="drop").share()]
    assert [read(item) for item in dataset] == want
    assert [read(step.item) for bundle in BundledDataset(dataset, 999) for step in sent(bundle).steps()] == want
    assert [read(item) for item in StreamingDataLoader(dataset)] == want


def test_where_an_iteration_begins(cache: DataCache) -> None:
    loader = StreamingDataLoader(StreamingDataset(cache, **OPTIONS, tail="keep"))

    def steps(most: int = 99) -> list[tuple[int, int]]:
        out: list[tuple[int, int]] = []
        for batch in loader:
            out.append((batch.epoch, batch.step))
            if len(out) == most:
                break
        return out

    whole = list(range(15))
    assert len(loader) == 15
    assert loader.state_dict()["next_step"] == 0
    assert steps(4) == [(0, s) for s in whole[:4]]
    saved = loader.state_dict()
    assert (saved["epoch"], saved["next_step"]) == (0, 4)
    assert steps() == [(0, s) for s in whole[4:]], "a broken-off iteration goes on"
    assert (loader.epoch, loader.state_dict()["next_step"]) == (1, 0), "the next epoch follows"
    assert steps(2) == [(1, 0), (1, 1)]
    loader.set_epoch(1)
    assert steps(1) == [(1, 0)], "set_epoch goes to the begin, also of the same epoch"
    loader.load_state_dict(saved)
    assert loader.state_dict() == saved
    loader.set_epoch(0)
    assert steps(1) == [(0, 4)], "set_epoch of the saved epoch keeps the saved step"
    loader.load_state_dict(saved)
    loader.set_epoch(3)
    assert steps(1) == [(3, 0)]
    older = iter(loader)
    assert next(older).step == 1
    newer = iter(loader)
    assert next(newer).step == 2
    with pytest.raises(RuntimeError, match="this iteration was ended, by a newer one"):
        next(older)
    assert next(newer).step == 3
    assert loader.state_dict()["next_step"] == 4


@pytest.mark.parametrize(("field", "value"), [("seed", 6), ("fingerprint", "f-2"), ("clump", 8)])
def test_a_state_of_another_order_is_refused_by_field(cache: DataCache, field: str, value: object) -> None:
    loader = StreamingDataLoader(StreamingDataset(cache, **OPTIONS))
    loader.load_state_dict({**loader.state_dict(), field: value})
    with pytest.raises(StateError, match=rf"{field} = {value!r}, but this loader has"):
        next(iter(loader))


@pytest.mark.parametrize("state", [{}, {"epoch": 3}, {"epoch": "x", "next_step": "y"}])
def test_what_is_no_state_is_refused(cache: DataCache, state: dict[str, Any]) -> None:
    dataset = StreamingDataset(cache, **OPTIONS)
    dataset.load_state_dict(state)
    with pytest.raises(StateError, match="version is missing"):
        iter(dataset)


def test_a_state_of_more_workers_says_what_to_do(cache: DataCache) -> None:
    stream = iter(StreamingDataset(cache, **OPTIONS))
    with pytest.raises(StateError, match=r"workers = 2, but .* has 1: give the state to StreamingDataset"):
        stream.load_state_dict({**stream.state_dict(), "workers": 2})


def test_the_position_in_a_stateful_dataloaders_state() -> None:
    def worker(step: int) -> dict[str, Any]:
        return {"fetcher_state": {"dataset_iter_state": {"kubeflow_datacache": {"epoch": 2, "next_step": step}}}}

    many = {"_snapshot": {"_worker_snapshots": {"worker_0": worker(5), "worker_1": worker(4)}}}
    assert loader_state_of({**many, "_steps_since_snapshot": 3}) == {"epoch": 2, "next_step": 8}
    assert loader_state_of({"_fetcher_state": worker(5)["fetcher_state"]}) == {"epoch": 2, "next_step": 5}
    assert loader_state_of({"epoch": 1, "next_step": 2}) == {"epoch": 1, "next_step": 2}


def test_a_transform_that_raises_says_where(cache: DataCache) -> None:
    def picky(rows: pa.RecordBatch) -> pa.RecordBatch:
        raise KeyError("x")

    with pytest.raises(TransformError, match=r"picky raised KeyError: 'x'; at epoch 0, step 0"):
        next(iter(StreamingDataLoader(StreamingDataset(cache, **OPTIONS, transform=picky))))


@pytest.mark.parametrize("options", [{}, {"batch_size": 64}], ids=["by default", "64"])
def test_batches_are_not_batched_again(cache: DataCache, options: dict[str, Any]) -> None:
    loader: DataLoader[Any] = DataLoader(StreamingDataset(cache, **OPTIONS), **options)
    with pytest.raises(TypeError, match=r"batches of them once more: use .*batch_size=None"):
        next(iter(loader))


def test_batches_of_a_plain_dataloader(cache: DataCache) -> None:
    loader = DataLoader(StreamingDataset(cache, **OPTIONS), batch_size=None)
    want = [step.rows for step in Oracle(rows=100, seed=5, global_batch=7, tail="drop").share()]
    assert [batch["id"].tolist() for batch in loader] == want


def stats_of(head: float, server: float) -> Stats:
    """The statistics of a worker."""
    seconds: dict[Stage, float] = {**dict.fromkeys(STAGES, 0.0), "head": head, "server": server, "consumer": 9.0}
    return Stats(
        seconds=seconds,
        epoch=0,
        next_step=0,
        steps=0,
        rows=0,
        bytes=0,
        raw_queue_depth=Depth(1, 10),
        prefetch_queue_depth=Depth(2, 20),
        reconnects=1,
    )


@pytest.mark.parametrize(
    ("waited", "want"),
    [(8.0, {"head": 2.0, "server": 4.0, "decode": 2.0}), (3.0, {"head": 1.0, "server": 2.0, "decode": 0.0})],
    ids=["the rest is passing on", "workers waited more"],
)
def test_waiting_is_split_as_the_workers_waited(waited: float, want: dict[Stage, float]) -> None:
    total = WorkerStats()
    total.begin()
    total.report(0, stats_of(1.0, 8.0))
    total.report(1, stats_of(3.0, 0.0))
    total.waited(waited)
    for _ in range(2):  # during the iteration, and after it, when the workers' queues are gone
        stats = total.stats(0, 0, Depth(5, 50))
        assert {stage: stats.seconds[stage] for stage in want} == pytest.approx(want)
        assert stats.waited == pytest.approx(waited)
        assert stats.reconnects == 2
        total.end()
    assert total.stats(0, 0, Depth(0, 0)).prefetch_queue_depth == Depth(0, 0)


def test_stats_of_a_loader(cache: DataCache, peer: Peer) -> None:
    loader = StreamingDataLoader(StreamingDataset(cache, **OPTIONS))
    given = sum(batch.num_rows for batch in loader)
    stats = loader.stats()
    assert (stats.steps, stats.rows) == (14, given) == (14, 98)
    assert stats.bytes > given * 8
    assert stats.wall > 0
    assert min(stats.seconds.values()) >= 0


def test_epochs_follow_each_other_in_torchs_own_loader(cache: DataCache) -> None:
    dataset = StreamingDataset(cache, global_batch_size=9, seed=4)
    loader = DataLoader(dataset, batch_size=None)
    want = [
        [step.rows for step in Oracle(rows=100, seed=4, epoch=epoch, global_batch=9, tail="drop").share()]
        for epoch in range(4)
    ]
    for epoch in range(2):
        assert [batch["id"].tolist() for batch in loader] == want[epoch]
    dataset.set_epoch(0)
    assert [batch["id"].tolist() for batch in loader] == want[0], "an epoch that is set is read"
    next(iter(loader))
    assert [batch["id"].tolist() for batch in loader] == want[1], "an epoch that was not read to its end"
    dataset.load_state_dict(cache.loader(global_batch_size=9, seed=4).state_dict() | {"epoch": 2, "next_step": 5})
    assert [batch["id"].tolist() for batch in loader] == want[2][5:]
    assert [batch["id"].tolist() for batch in loader] == want[3]
