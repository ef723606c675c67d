# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""put() of frames of pandas and polars and Datasets of datasets, and of Datasets of Ray, from its tasks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import datasets
import pandas as pd
import polars as pl
import polars.testing
import pyarrow as pa
import pytest
from kit.deadline import limit
from ray_environment import ray_environment

from kubeflow_datacache import ColumnError, DataCache, put

ROWS = 1000


@pytest.fixture
def cache(server: Path) -> Iterator[DataCache]:
    """A cache of two data nodes without a table."""
    with DataCache.local(puts=True, nodes=2, program=server, progress=False) as one:
        yield one


def of(cache: DataCache, name: str) -> pa.Table:
    """All rows of a dataset."""
    with DataCache(cache.endpoint, dataset=name) as one:
        return pa.Table.from_batches([one.head(len(one))])


def test_frames_of_pandas(cache: DataCache) -> None:
    frame = pd.DataFrame(
        {
            "id": range(ROWS),
            "text": [None if i % 3 else f"ü {i}" for i in range(ROWS)],
            "kind": pd.Categorical(["a" if i % 2 else "b" for i in range(ROWS)]),
            "list": [[i] * (i % 4) for i in range(ROWS)],
            "at": pd.date_range("2026-01-01", periods=ROWS, freq="h", tz="UTC"),
        },
        index=range(ROWS, 2 * ROWS),
    )
    assert put(cache, "frame", frame, progress=False).rows == ROWS
    got = of(cache, "frame").to_pandas()
    pd.testing.assert_frame_equal(got.astype({"kind": "category"}), frame.reset_index(drop=True), check_dtype=False)
    with pytest.raises((ColumnError, pa.ArrowException), match="mixed"):
        put(cache, "wrong", pd.DataFrame({"mixed": [1, "x"]}), progress=False)


def test_frames_of_polars(cache: DataCache) -> None:
    at = datetime(2026, 1, 1)
    frame = pl.DataFrame(
        {
            "id": range(ROWS),
            "text": [None if i % 3 else f"ü {i} " * 4 for i in range(ROWS)],
            "kind": pl.Series(["a" if i % 2 else "b" for i in range(ROWS)], dtype=pl.Categorical),
            "fixed": pl.Series(["y" if i % 5 else "x" for i in range(ROWS)], dtype=pl.Enum(["x", "y"])),
            "list": [[i] * (i % 4) for i in range(ROWS)],
            "kinds": pl.Series([["a"] * (i % 3) for i in range(ROWS)], dtype=pl.List(pl.Categorical)),
            "struct": [{"a": i, "b": str(i)} for i in range(ROWS)],
            "at": pl.Series([at + timedelta(hours=i) for i in range(ROWS)]),
            "price": pl.Series([i / 7 for i in range(ROWS)], dtype=pl.Decimal(12, 4)),
        }
    )
    for name, one in (("whole", frame), ("chunks", pl.concat([frame[:300], frame[300:]], rechunk=False))):
        assert put(cache, name, one, progress=False).rows == ROWS
        got = pl.DataFrame(of(cache, name)).cast({name: frame.schema[name] for name in ("kind", "kinds", "fixed")})
        polars.testing.assert_frame_equal(got, frame)
    halves = frame.lazy().filter(pl.col("id") < ROWS // 2)
    assert put(cache, "half", halves.collect(), progress=False).rows == ROWS // 2
    with pytest.raises(TypeError, match="LazyFrame"):
        put(cache, "lazy", halves, progress=False)


def test_datasets_of_hugging_face(cache: DataCache) -> None:
    whole = datasets.Dataset.from_dict(
        {"id": list(range(ROWS)), "tokens": [[i] * (i % 5) for i in range(ROWS)]},
        features=datasets.Features({"id": datasets.Value("int64"), "tokens": datasets.List(datasets.Value("int32"))}),
    )
    chosen = whole.filter(lambda row: row["id"] % 2 == 0).shuffle(seed=3)
    put(cache, "hub", chosen, progress=False)
    assert of(cache, "hub").to_pylist() == chosen.to_list()


RAY = """
import json, os, sys, time
import numpy as np, pandas as pd, pyarrow as pa, ray
from kubeflow_datacache import DataCache
from kubeflow_datacache.ray import CacheDatasink, put

endpoint, folder = sys.argv[1:]
ray.init(num_cpus=2)
cache = DataCache(endpoint)

def fails_once(batch: dict) -> dict:
    import os
    if batch["id"][0] == 300:
        try:
            os.close(os.open(folder + "/failed", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            pass
        else:
            os._exit(1)
    return {**batch, "square": batch["id"] ** 2}

rows = ray.data.range(1000, override_num_blocks=10).map_batches(fails_once, batch_size=100)
made = put(cache, "ray", rows)
frames = ray.data.from_pandas([pd.DataFrame({"n": [1, 2]}), pd.DataFrame({"n": [3]})])
two = put(cache, "frames", frames)
class Dies(CacheDatasink): # its fifth task ends its process when it has sent half of its part
    def write(self, blocks, ctx):
        blocks = list(blocks)

        def half():
            yield pa.table({"id": blocks[0]["id"]}).slice(0, 50)
            time.sleep(1)
            os._exit(1)

        if ctx.task_idx == 4 and not os.path.exists(folder + "/died"):
            open(folder + "/died", "w").close()
            self._put.send(ctx.task_idx, half)
        return super().write(blocks, ctx)

sink = Dies(cache, "dies", parts=10)
ray.data.range(1000, override_num_blocks=10).materialize().write_datasink(sink)
try:
    put(cache, "wrong", ray.data.from_arrow([pa.table({"n": [1]}), pa.table({"n": ["x"]})]))
    reason = ""
except Exception as error:
    reason = str(error)
print("result", json.dumps([made.rows, made.reference, two.rows, reason]))
"""


def test_datasets_of_ray(cache: DataCache, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(RAY)
    paths = [str(Path(__file__).parents[2] / "src"), os.environ.get("PYTHONPATH", "")]
    with ray_environment() as environment:
        run = subprocess.run(
            [sys.executable, script, cache.endpoint, str(tmp_path)],
            capture_output=True,
            text=True,
            check=False,
            timeout=3 * limit(),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment},
        )
    assert run.returncode == 0, run.stdout + run.stderr
    (line,) = [line for line in run.stdout.splitlines() if line.startswith("result ")]
    rows, reference, frames, reason = json.loads(line.removeprefix("result "))
    assert (rows, frames) == (ROWS, 3)
    got = of(cache, reference)
    assert sorted(got["id"].to_pylist()) == list(range(ROWS))
    assert all(row["square"] == row["id"] ** 2 for row in got.to_pylist())
    assert (tmp_path / "failed").exists(), "no task failed"
    assert "put part 1 of 'wrong': column 'n': string can't be put as int64" in reason
    assert (tmp_path / "died").exists(), "no task died in its put"
    assert of(cache, "dies").column("id").to_pylist() == list(range(ROWS))
    assert {dataset["name"] for dataset in cache.status()["datasets"]} == {"ray", "frames", "dies"}
