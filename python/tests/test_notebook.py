# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""HTML for notebooks, samples one by one, and another batch size after a resume."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from peer import Peer, rows_of

import kubeflow_datacache
from kubeflow_datacache import DataCache, StateError, World

ALONE = World(0, 1)


def test_looking_at_a_cache(cache: DataCache, peer: Peer) -> None:
    assert cache._repr_html_() == (  # pyright: ignore[reportPrivateUsage] - notebooks call it
        f"<table><caption>DataCache</caption><tr><th>endpoint</th><td>{peer.endpoint}</td></tr></table>"
    )
    assert peer.requests == [], "showing a cache does not connect"
    assert cache.head() == rows_of([0, 1, 2, 3, 4])
    assert cache.head(200, columns=["id"]).num_rows == 100
    assert "<th>rows</th><td>100</td>" in cache._repr_html_()  # pyright: ignore[reportPrivateUsage]
    assert kubeflow_datacache.__version__


def test_looking_at_a_batch_and_a_loader(cache: DataCache) -> None:
    loader: Any = cache.loader(global_batch_size=8, seed=3, world=ALONE)
    batch = next(iter(loader))
    assert batch["name"].equals(batch.arrow()["name"])
    assert batch.schema == cache.schema
    with pytest.raises(KeyError):
        batch["nmae"]
    assert repr(loader).endswith("global_batch_size=8, seed=3, shuffle=True; epoch 0, step 1 of 12)")
    assert "<td>epoch 0, step 1 of 12</td>" in loader._repr_html_()
    assert loader.stats()._repr_html_().startswith("<pre>stage")
    assert "<th>step</th><td>0</td></tr><tr><th>rows</th><td>8</td>" in batch._repr_html_()
    assert "<th>column name</th><td>string</td>" in batch._repr_html_()
    counted: Any = cache.loader(global_batch_size=8, transform=lambda rows: [0] * len(rows), world=ALONE)
    assert "<th>data</th><td>list</td>" in next(iter(counted))._repr_html_()
    table: Any = cache.table(columns=["id"])
    assert repr(table).endswith(", rows: 100, columns: id)")
    assert "<th>rows</th><td>100</td></tr><tr><th>columns</th><td>id</td>" in table._repr_html_()


def test_samples_one_by_one(cache: DataCache) -> None:
    loader = cache.loader(global_batch_size=8, shuffle=False, tail="pad", world=ALONE)
    samples = loader.samples()
    begin = [next(samples) for _ in range(10)]
    assert begin == rows_of(list(range(10))).to_pylist()
    state = loader.state_dict()
    assert state["next_step"] == 1, "a batch that was not given out wholly is given again"
    assert [sample["id"] for sample in samples] == list(range(10, 100)), "without the padding"
    loader.load_state_dict(state)
    assert [sample["id"] for sample in loader.samples()] == list(range(8, 100))

    def lengths(rows: pa.RecordBatch) -> list[int]:
        return [len(name) for name in rows["name"].to_pylist()]

    assert next(cache.loader(global_batch_size=8, shuffle=False, transform=lengths, world=ALONE).samples()) == 5
    with pytest.raises(TypeError, match="one sample a row"):
        next(cache.loader(global_batch_size=8, transform=lambda rows: {"x": 1}, world=ALONE).samples())


@pytest.mark.parametrize("size", [3, 4, 12, 24])
def test_a_state_of_another_batch_size(cache: DataCache, size: int) -> None:
    options: dict[str, Any] = {"seed": 3, "tail": "keep", "world": ALONE, "columns": ["id"]}
    whole = cache.loader(global_batch_size=12, **options)
    ids = [batch["id"].to_pylist() for batch in whole]
    whole.set_epoch(0)
    for _, _batch in zip(range(2), whole, strict=False):
        pass
    state = json.loads(json.dumps(whole.state_dict()))
    other = cache.loader(global_batch_size=size, **options)
    other.load_state_dict(state)
    rest = [row for batch in other for row in batch["id"].to_pylist()]
    assert rest == [row for step in ids[2:] for row in step]
    torch = pytest.importorskip("kubeflow_datacache.torch")
    loader = torch.StreamingDataLoader(torch.StreamingDataset(cache, global_batch_size=size, **options))
    loader.load_state_dict(state)
    assert [row for batch in loader for row in batch["id"].tolist()] == rest


def test_a_batch_size_that_does_not_fit_lists_those_that_do(cache: DataCache) -> None:
    state = {**cache.loader(global_batch_size=12, world=ALONE).state_dict(), "next_step": 2}
    message = (
        r"24 rows of the epoch were read, .* no step of 7 rows begins there: give a divisor of 24, such as 1, 2, 3"
    )
    with pytest.raises(StateError, match=message):
        cache.loader(global_batch_size=7, world=ALONE).load_state_dict(state)
    torch = pytest.importorskip("kubeflow_datacache.torch")
    with pytest.raises(StateError, match=message):
        torch.StreamingDataset(cache, global_batch_size=7).load_state_dict(state)
    ended = {**state, "next_step": 8}
    loader = cache.loader(global_batch_size=7, world=ALONE)
    loader.load_state_dict(ended)
    assert next(iter(loader)).epoch == 1, "a whole epoch is whole with any batch size"
