# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Length buckets: every step keeps its rows."""

from __future__ import annotations

import itertools
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from small import ROWS, small_cache, steps_of

from kubeflow_datacache import ColumnError, DataCache, LengthBuckets, World

OPTIONS: dict[str, Any] = {"global_batch_size": 24, "seed": 5, "shuffle": True, "clump": 1, "tail": "keep"}
RAGGED = pa.record_batch(
    {"id": pa.array(range(5)), "t": pa.array([[1], [2, 2], None, [4, 4], [5, 5, 5]], pa.list_(pa.int32()))}
)


@pytest.fixture(scope="module")
def endpoint(server: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real cache whose column "text" has strings of 13 to 15 characters."""
    with small_cache(server, tmp_path_factory.mktemp("buckets")) as one:
        yield one


def ids_of(micro: list[pa.RecordBatch]) -> list[int]:
    """The sorted ids of the rows in a step's micro-batches."""
    return sorted(itertools.chain.from_iterable(part["id"].to_pylist() for part in micro))


def test_the_longest_come_first_and_equals_keep_their_order() -> None:
    first, second = pickle.loads(pickle.dumps(LengthBuckets("t", 2)))(RAGGED)
    assert first["id"].to_pylist() == [4, 1, 3]
    assert second["id"].to_pylist() == [0, 2]
    assert [part.num_rows for part in LengthBuckets("t", 7)(RAGGED)] == [1, 1, 1, 1, 1, 0, 0]
    assert LengthBuckets("t", 2, then=pa.RecordBatch.to_pydict)(RAGGED.slice(0, 0)) == [{"id": [], "t": []}] * 2


@pytest.mark.parametrize("kind", [pa.string(), pa.binary(), pa.large_string(), pa.large_list(pa.int8())])
def test_columns_with_lengths(kind: pa.DataType) -> None:
    values: list[Any] = [[1, 2], [1], [1, 2, 3]] if pa.types.is_large_list(kind) else ["ab", "a", "abc"]
    parts = LengthBuckets("t", 3)(pa.record_batch({"t": pa.array(values, kind)}))
    assert [len(part["t"][0].as_py()) for part in parts] == [3, 2, 1]


@pytest.mark.parametrize(("by", "said"), [("x", "'x' is no column of the batch"), ("id", "'id' is int64, want lists")])
def test_columns_without_lengths(by: str, said: str) -> None:
    with pytest.raises(ColumnError, match=said):
        LengthBuckets(by, 2)(RAGGED)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_every_step_keeps_its_rows(endpoint: str, world: int) -> None:
    with DataCache(endpoint) as cache:
        for rank in range(world):
            loader = cache.loader(transform=LengthBuckets("text", 3), world=World(rank, world), **OPTIONS)
            micro = [batch.data for batch in loader]
            assert [ids_of(parts) for parts in micro] == [
                sorted(rows) for rows in steps_of(OPTIONS, 0, rank=rank, world=world)
            ]
            for parts in micro:
                lengths = [len(text) for part in parts for text in part["text"].to_pylist()]
                assert lengths == sorted(lengths, reverse=True)


def test_a_state_serves_another_world(endpoint: str) -> None:
    with DataCache(endpoint) as cache:
        before = cache.loader(transform=LengthBuckets("text", 2), world=World(0, 2), **OPTIONS)
        batches = iter(before)
        assert [next(batches).step, next(batches).step] == [0, 1]
        state = json.loads(json.dumps(before.state_dict()))
        after = cache.loader(transform=LengthBuckets("text", 5), world=World(0, 1), **OPTIONS)
        after.load_state_dict(state)
        assert [ids_of(batch.data) for batch in after] == [sorted(rows) for rows in steps_of(OPTIONS, 0)[2:]]


def test_padding_in_workers(endpoint: str) -> None:
    pytest.importorskip("torch")
    from kubeflow_datacache.torch import Pad, StreamingDataLoader, StreamingDataset

    buckets = LengthBuckets("tokens", 2, then=Pad({"tokens": 0}))
    with DataCache(endpoint) as cache:
        dataset = StreamingDataset(cache, columns=["id", "tokens"], transform=buckets, world=World(0, 1), **OPTIONS)
        steps = list(StreamingDataLoader(dataset, num_workers=2))
    assert len(steps) == -(-ROWS // OPTIONS["global_batch_size"])
    got = [sorted(np.concatenate([part["id"].numpy() for part in micro]).tolist()) for micro in steps]
    assert got == [sorted(rows) for rows in steps_of(OPTIONS, 0)]
    assert all(part["tokens"].shape == part["tokens_mask"].shape for micro in steps for part in micro)
