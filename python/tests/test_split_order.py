# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The rows of filtered and split epochs on each data node, against the golden vectors that also test the servers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kubeflow_datacache.order.epoch import Epoch, Share
from kubeflow_datacache.order.split import Split, placement
from vectors import order_fields, vectors

VECTORS: list[Any] = vectors("selection_vectors.json")["cases"]


@pytest.mark.parametrize("vector", VECTORS, ids=range(len(VECTORS)))
def test_golden_selections(vector: dict[str, Any]) -> None:
    rows = np.arange(vector["rows"]) if vector["filter"] is None else np.array(vector["filter"], np.int64)
    bounds = tuple((int(start), int(end)) for start, end in np.searchsorted(rows, vector["nodes"]))
    split = None if vector["split"] is None else Split.parse(vector["split"])
    held, want = placement(bounds, split, len(rows)), vector["want"]
    order = Epoch(rows=want["rows"], **order_fields(vector))
    assert len(rows) == want["filtered_rows"]
    first, last = (0, len(rows)) if split is None else split.bounds(len(rows))
    assert last - first == want["rows"]
    for rank, streams in enumerate(want["streams"]):
        share = Share(rank=rank, world=vector["world"])
        numbers = held.numbers(order.rows_of(range(order.steps), share))
        for (start, end), stream in zip(held.bounds, streams, strict=True):
            mine = numbers[(numbers >= start) & (numbers < end)]
            assert rows[mine + held.first].tolist() == stream, (rank, start, end)
