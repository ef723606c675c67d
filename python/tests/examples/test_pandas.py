# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Batches as pandas.DataFrames: what they hold, and what of it is a copy."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from kubeflow_datacache import Batch, DataCache, World

VIEWS = {"count", "share", "time"}  # numbers and times without nulls
COPIES = {"gaps", "flag", "list"}


@pytest.fixture
def batch(cache: DataCache) -> Batch:
    """Ten rows with a column of each kind."""

    def columns(rows: pa.RecordBatch) -> pa.RecordBatch:
        ids = rows["id"].to_numpy()
        made = {
            "count": ids,
            "share": ids / 100,
            "time": ids.astype("datetime64[us]"),
            "gaps": pa.array(ids, mask=ids % 2 == 1),
            "flag": ids % 2 == 0,
            "list": [[i, i] for i in ids],
            "text": [f"text {i}" for i in ids],
        }
        return pa.record_batch({name: pa.array(values) for name, values in made.items()})

    return next(iter(cache.loader(global_batch_size=10, shuffle=False, transform=columns, world=World(0, 1))))


def shared(batch: Batch, frame: Any, column: str) -> bool:
    """Whether a column of numbers or times lies in the batch's memory."""
    address, size = (own := batch[column].buffers()[1]).address, own.size
    return address <= frame[column].to_numpy().__array_interface__["data"][0] < address + size


def test_a_data_frame_has_the_rows(batch: Batch, cache: DataCache) -> None:
    frame = batch.to_pandas()
    assert frame["count"].tolist() == list(range(10))
    assert frame["text"].tolist() == [f"text {i}" for i in range(10)]
    assert frame["gaps"].isna().tolist() == [False, True] * 5
    assert cache.head(3).to_pandas()["id"].tolist() == [0, 1, 2]


def test_all_is_copied_unless_told_otherwise(batch: Batch) -> None:
    frame = batch.to_pandas()
    assert not any(shared(batch, frame, column) for column in VIEWS)
    for column in VIEWS:
        assert not shared(batch, batch.arrow().select([column]).to_pandas(), column), "also alone in its batch"


def test_numbers_and_times_are_views(batch: Batch) -> None:
    frame = batch.to_pandas(split_blocks=True)
    assert {column for column in VIEWS | COPIES - {"list"} if shared(batch, frame, column)} == VIEWS
    with pytest.raises(ValueError, match="read-only"):
        frame.loc[0, "count"] = 7
    frame["count"] += 1
    assert batch["count"].to_pylist() == list(range(10))


def test_arrow_types_copy_nothing(batch: Batch) -> None:
    frame = batch.to_pandas(types_mapper=pd.ArrowDtype)
    for column in batch.schema.names:
        array = pa.chunked_array(pa.array(frame[column]))
        assert [b and b.address for b in array.chunk(0).buffers()] == [b and b.address for b in batch[column].buffers()]


@pytest.mark.parametrize("column", sorted(VIEWS | COPIES))
def test_a_copy_can_be_made_an_error(cache: DataCache, batch: Batch, column: str) -> None:
    loader = cache.loader(global_batch_size=10, transform=lambda _: batch.arrow().select([column]), world=World(0, 1))
    with nullcontext() if column in VIEWS else pytest.raises(pa.ArrowInvalid):
        next(iter(loader)).to_pandas(split_blocks=True, zero_copy_only=True)
