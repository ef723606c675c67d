# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A batch is a mapping of its columns, with and without a transform."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from kubeflow_datacache import DataCache, World

ALONE = World(0, 1)
torch = pytest.importorskip("torch")


def test_a_batch_is_a_mapping(cache: DataCache) -> None:
    batch = next(iter(cache.loader(global_batch_size=8, world=ALONE)))
    assert isinstance(batch, Mapping)
    assert list(batch) == list(batch.keys()) == ["id", "name", "vector"]
    assert (len(batch), batch.num_rows) == (3, 8)
    assert dict(**batch)["id"].equals(batch.arrow()["id"])
    assert "id" in batch
    assert batch.get("none") is None
    with pytest.raises(KeyError):
        batch["none"]
    assert batch == batch
    assert len({batch}) == 1
    from_numpy = next(iter(cache.loader(global_batch_size=8, transform=to_numpy, world=ALONE)))
    assert (list(from_numpy), from_numpy.num_rows) == (["half", "name"], 8)
    assert from_numpy["half"] is from_numpy.data["half"]
    scalar = next(iter(cache.loader(global_batch_size=8, transform=len, world=ALONE)))
    assert scalar.data == 8


def test_no_internals_in_dir(cache: DataCache) -> None:
    batch = next(iter(cache.loader(global_batch_size=8, world=ALONE)))
    shown = {name for name in dir(batch) if not name.startswith("_")} - set(dir(Mapping))
    assert shown == {
        "arrow", "data", "epoch", "indices", "nbytes", "num_rows", "numpy", "schema", "source", "step", "to_pandas",
        "torch", "valid", "weight",
    }  # fmt: skip


def to_numpy(rows: pa.RecordBatch) -> dict[str, Any]:
    """A column of numbers and one of text."""
    return {
        "half": rows["id"].to_numpy() / 2,
        "name": rows["name"].to_numpy(zero_copy_only=False),
    }


def test_arrays_of_a_transform_become_tensors(cache: DataCache) -> None:
    from kubeflow_datacache.torch import Pad, StreamingDataLoader, StreamingDataset

    options: dict[str, Any] = {"global_batch_size": 8, "shuffle": False, "world": ALONE}
    columns = next(iter(cache.loader(transform=to_numpy, **options))).torch()
    assert columns["half"].tolist() == [i / 2 for i in range(8)]
    assert isinstance(columns["name"], np.ndarray)
    batch = next(iter(StreamingDataLoader(StreamingDataset(cache, transform=to_numpy, **options))))
    assert isinstance(batch["half"], torch.Tensor)
    assert (len(batch), batch.num_rows) == (2, 8)
    padded = next(iter(cache.loader(transform=Pad({"vector": 0}, length=4), **options)))
    assert padded.torch()["vector"][1].tolist() == [3, 4, 5, 0]
    assert padded["vector"][1].tolist() == [3, 4, 5, 0]
    assert padded.torch(device="meta")["vector"].device.type == "meta"
