# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The loader on a folder of Parquet files, with types that Iceberg tables don't have."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kubeflow_datacache import ColumnError, DataCache, StateError

ROWS = 200
KINDS = ["no", "yes", "perhaps"]
CLASSES = {"names": KINDS, "_type": "ClassLabel"}
FEATURES = json.dumps(
    {
        "info": {
            "features": {
                "id": {"dtype": "int64", "_type": "Value"},
                "i8": CLASSES,
                "tokens": {"feature": CLASSES, "length": 8, "_type": "List"},
            }
        }
    }
).encode()
SHAPE = (2, 3)


def write(folder: Path) -> dict[str, np.ndarray]:
    """Writes two files, and returns the values of their columns."""
    ids = np.arange(ROWS)
    scalars = {
        **{f"u{bits}": (ids * 7919).astype(f"uint{bits}") for bits in (8, 16, 32, 64)},
        **{f"i{bits}": (-ids).astype(f"int{bits}") for bits in (8, 16)},
        "half": (ids / 4).astype(np.float16),
        "lasts": ids.astype("timedelta64[ms]"),
        "at": ids.astype("datetime64[us]"),
    }
    tensors = {
        "tokens": (ids[:, None] * 300 + np.arange(8)).astype(np.uint16),
        "vector": (ids[:, None] / 2 + np.arange(3)).astype(np.float16),
    }
    pages = (ids[:, None, None] + np.arange(6).reshape(SHAPE)).astype(np.int16)
    uuids = np.frombuffer(b"".join(bytes([i]) * 16 for i in range(ROWS)), np.uint8).reshape(ROWS, 16)
    columns: dict[str, pa.Array] = {"id": pa.array(ids)} | {name: pa.array(values) for name, values in scalars.items()}
    columns["at"] = columns["at"].cast(pa.timestamp("us", "Europe/Berlin"))
    columns["uuid"] = pa.array([row.tobytes() for row in uuids], pa.uuid())
    flat = pa.FixedSizeListArray.from_arrays(pa.array(pages.ravel()), 3)
    columns["pages"] = pa.FixedSizeListArray.from_arrays(flat, 2)
    for name, type_ in {
        "tensor": pa.fixed_shape_tensor(pa.int16(), SHAPE),
        "turned": pa.fixed_shape_tensor(pa.int16(), SHAPE, permutation=[1, 0]),
    }.items():
        stored = pa.FixedSizeListArray.from_arrays(pa.array(pages.ravel()), 6)
        columns[name] = pa.ExtensionArray.from_storage(type_, stored)
    for name, values in tensors.items():
        columns[name] = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])
    table = pa.table(columns).replace_schema_metadata({"huggingface": FEATURES})
    for i, part in enumerate((table.slice(0, 70), table.slice(70))):
        pq.write_table(part, folder / f"{i}.parquet", row_group_size=30)
    return {
        **(scalars | tensors),
        "uuid": uuids,
        "pages": pages,
        "tensor": pages,
        "turned": pages.transpose(0, 2, 1),
    }


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
            for name in ("uuid", "pages", "tensor", "turned"):
                np.testing.assert_array_equal(tensors[name].numpy(), want[name][ids], name)


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


@pytest.mark.parametrize("workers", [0, 1])
def test_columns_are_cast_last(server: Path, tmp_path: Path, workers: int) -> None:
    """On the device, or before a collate_fn; in memory and on the wire they have the types of the files."""
    torch = pytest.importorskip("torch")
    ours = pytest.importorskip("kubeflow_datacache.torch")
    want = write(tmp_path)["tokens"].astype(np.int64)
    casts: dict[str, Any] = {"tokens": "int64", "half": torch.bfloat16}
    with DataCache.local(tmp_path, program=server, progress=False) as cache:
        batch = next(iter(cache.loader(global_batch_size=50, shuffle=False, cast=casts)))
        assert (batch.schema.field("tokens").type.value_type, batch.numpy()["tokens"].dtype) == (pa.uint16(), np.uint16)
        np.testing.assert_array_equal(batch.torch()["tokens"].numpy(), want[:50])
        there = batch.torch(device="meta")
        assert (there["tokens"].device.type, there["tokens"].dtype) == ("meta", torch.int64)
        dataset = ours.StreamingDataset(cache, global_batch_size=50, shuffle=False, cast=casts)
        seen: list[Any] = []

        def collate(item: Any) -> Any:
            seen.append(item["tokens"].dtype)
            return item

        for options in ({}, {"device": "cpu"}, {"collate_fn": collate}, {"collate_fn": collate, "device": "cpu"}):
            loader = ours.StreamingDataLoader(dataset, num_workers=workers, **options)
            loader.set_epoch(0)
            got = list(loader)
            assert [type(each) for each in got] == [ours.TensorBatch] * 4
            assert {(each["half"].dtype, each["u8"].dtype) for each in got} == {(torch.bfloat16, torch.uint8)}
            np.testing.assert_array_equal(torch.cat([each["tokens"] for each in got]).numpy(), want)
        assert set(seen) == {torch.int64}
        with pytest.raises(ColumnError, match=r"'tokns' is no column .* did you mean 'tokens'"):
            cache.loader(global_batch_size=5, cast={"tokns": "int64"})
        with pytest.raises(ColumnError, match=r"'tokens' is not among columns = \['id'\]"):
            cache.loader(global_batch_size=5, columns=["id"], cast={"tokens": "int64"})


def test_names_of_classes(server: Path, tmp_path: Path) -> None:
    write(tmp_path)
    with DataCache.local(tmp_path, program=server, progress=False) as cache:
        assert cache.class_names("i8") == cache.class_names("tokens") == KINDS
        assert cache.select(filter="id < 9").class_names("i8") == KINDS
        for column, says in {"id": "name no classes", "u8": "name no classes", "i9": "is no column"}.items():
            with pytest.raises(ColumnError, match=says):
                cache.class_names(column)
