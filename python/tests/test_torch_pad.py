# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Padding, the dataset class of KEP 2655, and tensors on a device."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from small import steps_of

from kubeflow_datacache import ColumnError, DataCache, World

pytest.importorskip("torch")
import torch
from torch.utils.data import DataLoader

from kubeflow_datacache.torch import ArrowCacheDataset, Pad, StreamingDataLoader, StreamingDataset

ALONE = World(0, 1)
RAGGED = pa.record_batch(
    {"id": pa.array([0, 1, 2, 3]), "t": pa.array([[9, 8], None, [7, 6, 5], [4]], pa.list_(pa.int32()))}
).slice(0, 4)


def test_lists_are_padded_to_the_longest() -> None:
    out = pickle.loads(pickle.dumps(Pad({"t": -1})))(RAGGED)
    assert out["t"].tolist() == [[9, 8, -1], [-1, -1, -1], [7, 6, 5], [4, -1, -1]]
    assert out["t"].dtype == torch.int32
    assert out["t_mask"].tolist() == [[True, True, False], [False] * 3, [True] * 3, [True, False, False]]
    assert out["id"].tolist() == [0, 1, 2, 3]
    part = Pad({"t": 0}, masks=False)(RAGGED.slice(2, 2))
    assert (part["t"].tolist(), list(part)) == ([[7, 6, 5], [4, 0, 0]], ["id", "t"])


def test_widths() -> None:
    assert Pad({"t": 0}, length=2)(RAGGED)["t"].tolist() == [[9, 8], [0, 0], [7, 6], [4, 0]]
    assert Pad({"t": 0}, length=5)(RAGGED)["t"].shape == (4, 5)
    assert Pad({"t": 0}, multiple_of=8)(RAGGED)["t"].shape == (4, 8)
    assert Pad({"t": 0})(RAGGED.slice(0, 0))["t"].shape == (0, 0)


@pytest.mark.parametrize(
    ("rows", "values", "message"),
    [
        (RAGGED, {"x": 0}, "'x' is no column of the batch"),
        (RAGGED.select(["id"]), {"id": 0}, "column 'id' is int64, want lists of numbers"),
        (pa.record_batch({"t": pa.array([[1, None]])}), {"t": 0}, "column 't' has 1 null numbers"),
    ],
)
def test_what_cannot_be_padded(rows: pa.RecordBatch, values: dict[str, float], message: str) -> None:
    with pytest.raises(ColumnError, match=message):
        Pad(values)(rows)


def test_padding_as_a_transform(cache: DataCache) -> None:
    dataset = StreamingDataset(cache, global_batch_size=10, shuffle=False, transform=Pad({"vector": 0}, length=4))
    first = next(iter(StreamingDataLoader(dataset)))
    assert first["vector"][1].tolist() == [3, 4, 5, 0]
    assert first["vector_mask"][1].tolist() == [True, True, True, False]


class Ids(ArrowCacheDataset):
    """A subclass as users of the proposal's class write it."""

    def from_arrow_rb_to_tensor(self, chunk: pa.RecordBatch) -> Iterator[Any]:
        """Yields two items per record batch."""
        yield chunk["id"].to_pylist()
        yield len(chunk)


def test_the_dataset_of_the_proposal(cache: DataCache) -> None:
    dataset = Ids(seed=4, batch_size=9, cache=cache)
    for epoch in (0, 3):
        dataset.set_epoch(epoch)
        items = list(DataLoader(dataset, batch_size=None, collate_fn=lambda item: item))
        assert items[::2] == steps_of({"global_batch_size": 9, "seed": 4, "tail": "drop"}, epoch, rows=100)
        assert items[1::2] == [9] * 11
    assert next(iter(ArrowCacheDataset(cache=cache, batch_size=5)))["id"].shape == (5,)


def test_a_collate_fn(cache: DataCache) -> None:
    dataset = StreamingDataset(cache, global_batch_size=10, shuffle=False)
    loader = StreamingDataLoader(dataset, collate_fn=lambda batch: batch["id"].sum().item())
    assert list(loader)[:2] == [45, 145]


def test_tensors_on_a_device(cache: DataCache) -> None:
    batch = next(iter(cache.loader(global_batch_size=8, world=ALONE)))
    columns = batch.torch(device="meta", non_blocking=True)
    assert columns["id"].device.type == "meta"
    assert isinstance(columns["name"], pa.Array)
