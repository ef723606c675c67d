# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The loader on a folder of Parquet files, with types that Iceberg tables don't have."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kubeflow_datacache import DataCache, StateError

ROWS = 200
FEATURES = b'{"info": {"features": {"id": {"dtype": "int64", "_type": "Value"}}}}'


def write(folder: Path) -> dict[str, np.ndarray]:
    """Writes two files, and returns the values of their columns."""
    ids = np.arange(ROWS)
    scalars = {
        **{f"u{bits}": (ids * 7919).astype(f"uint{bits}") for bits in (8, 16, 32, 64)},
        **{f"i{bits}": (-ids).astype(f"int{bits}") for bits in (8, 16)},
        "half": (ids / 4).astype(np.float16),
        "lasts": ids.astype("timedelta64[ms]"),
    }
    tensors = {
        "tokens": (ids[:, None] * 300 + np.arange(8)).astype(np.uint16),
        "vector": (ids[:, None] / 2 + np.arange(3)).astype(np.float16),
    }
    columns: dict[str, pa.Array] = {"id": pa.array(ids)} | {name: pa.array(values) for name, values in scalars.items()}
    for name, values in tensors.items():
        columns[name] = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])
    table = pa.table(columns).replace_schema_metadata({"huggingface": FEATURES})
    for i, part in enumerate((table.slice(0, 70), table.slice(70))):
        pq.write_table(part, folder / f"{i}.parquet", row_group_size=30)
    return scalars | tensors


def test_types_are_those_of_the_files(server: Path, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    want = write(tmp_path)
    with DataCache.local(tmp_path, program=server, progress=False, nodes=2) as cache:
        for batch in cache.loader(global_batch_size=50, seed=1):
            got, tensors, ids = batch.numpy(), batch.torch(), batch.numpy()["id"]
            assert batch.schema.metadata == {b"huggingface": FEATURES}
            for name, values in want.items():
                assert got[name].dtype == values.dtype, name
                np.testing.assert_array_equal(got[name], values[ids], name)
            assert tensors["tokens"].dtype == torch.uint16
            assert tensors["vector"].dtype == torch.float16
            assert tensors["vector"].shape == (50, 3)


def test_a_state_is_good_for_the_same_files(server: Path, tmp_path: Path) -> None:
    write(tmp_path)

    def rows(state: str | None, steps: int) -> tuple[list[int], str]:
        with DataCache.local(tmp_path, program=server, progress=False) as cache:
            loader = cache.loader(global_batch_size=20, seed=3, columns=["id"])
            if state:
                loader.load_state_dict(json.loads(state))
            seen: list[int] = []
            for _, batch in zip(range(steps), loader, strict=False):
                seen += batch.numpy()["id"].tolist()
            return seen, json.dumps(loader.state_dict())

    first, state = rows(None, 4)
    rest, _ = rows(state, 100)
    assert sorted(first + rest) == list(range(ROWS))
    os.utime(tmp_path / "1.parquet")  # as if it had been written anew
    with pytest.raises(StateError, match="snapshot"):
        rows(state, 1)
