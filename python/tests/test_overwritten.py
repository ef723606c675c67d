# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A state that was saved before a data file was overwritten in place: the same snapshot, other rows."""

import io
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cluster import Cluster
from lake import Lake

from kubeflow_datacache import DataCache
from kubeflow_datacache.errors import StateError


def _rows(version: int) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table({"id": pa.array(range(1000), pa.int64()), "version": [version] * 1000}), out)
    return out.getvalue()


def test_a_state_from_before_a_file_was_overwritten_is_refused(
    server: Path, tmp_path: Path, connect: Callable[..., DataCache]
) -> None:
    lake = Lake(tmp_path)
    uri = lake.write("rows.parquet", _rows(0))
    table = lake.create("overwritten", pa.schema([("id", pa.int64()), ("version", pa.int64())]))
    table.add_files([uri])
    metadata = lake.pin("overwritten", table).metadata

    def state(saved: dict[str, object] | None) -> dict[str, object]:
        with Cluster(server, metadata, tmp_path) as servers:
            servers.wait_ready()
            loader = connect(servers.endpoint).loader(global_batch_size=100, seed=7)
            if saved is not None:
                loader.load_state_dict(saved)
            batches = iter(loader)
            next(batches)
            return loader.state_dict()

    saved = state(None)
    assert state(saved) == {**saved, "next_step": 2}  # other processes, the same rows
    lake.write("rows.parquet", _rows(1))
    with pytest.raises(StateError, match="fingerprint"):
        state(saved)
