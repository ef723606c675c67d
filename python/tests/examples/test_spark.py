# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A DataFrame of a real Spark is put into a cache, by tasks that are tried again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from kit.deadline import limit

from kubeflow_datacache import DataCache

_SCRIPT = """
import sys
from pyspark import TaskContext
from pyspark.sql import SparkSession
from kubeflow_datacache import DataCache, spark

session = SparkSession.builder.master("local[2,3]").config("spark.ui.enabled", "false").getOrCreate()


def fails_once(batches):
    context = TaskContext.get()
    for batch in batches:
        yield batch
        if context.partitionId() == 2 and context.attemptNumber() == 0:
            raise ValueError("the first attempt of partition 2 fails after its first rows")


frame = session.range(0, 20_000, 1, 6).selectExpr("id", "cast(id as string) as text").mapInArrow(
    fails_once, "id long, text string"
)
print(spark.put(DataCache(sys.argv[1]), "frame", frame).reference)
"""


def test_a_frame_is_put_by_tasks(pytestconfig: pytest.Config) -> None:
    python = os.environ.get("DATACACHE_SPARK_PYTHON")
    if python is None:
        pytest.skip("no DATACACHE_SPARK_PYTHON given: run 'make test-examples'")
    program: Path = pytestconfig.getoption("--server")  # pyright: ignore[reportAssignmentType]
    own = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYSPARK_PYTHON": python}
    with DataCache.local(puts=True, nodes=2, program=program, progress=False) as cache:
        ran = subprocess.run(
            [python, "-c", _SCRIPT, cache.endpoint],
            env=own,
            capture_output=True,
            text=True,
            timeout=limit(),
            check=False,
        )
        assert ran.returncode == 0, ran.stderr[-3000:]
        with DataCache(cache.endpoint, dataset=ran.stdout.split()[-1]) as frame:
            assert frame.head(20_001)["id"].to_pylist() == list(range(20_000))
