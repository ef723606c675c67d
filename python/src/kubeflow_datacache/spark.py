# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Puts a Spark DataFrame into a cache, from its executors."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kubeflow_datacache.errors import DataCacheError
from kubeflow_datacache.puts import Mode, Published, Put

if TYPE_CHECKING:
    from kubeflow_datacache.cache import DataCache


def _spark(module: str) -> Any:
    return importlib.import_module(module)  # this package does not depend on Spark


def _once(batches: Iterator[pa.RecordBatch]) -> Callable[[], Iterator[pa.RecordBatch]]:
    """A function that returns the batches once. They can't be read again: the task fails, and Spark runs it again."""
    left = [batches]

    def get() -> Iterator[pa.RecordBatch]:
        if not left:
            raise DataCacheError("a data node did not take all rows of a task: Spark runs the task again")
        return left.pop()

    return get


def put(cache: DataCache, name: str, frame: Any, *, mode: Mode = "create") -> Published:
    """Puts a DataFrame of Spark as a dataset, from its executors, each partition as one part.

    The executors need this package, and a way to the data nodes. Tasks may be tried again and run speculatively: the
    rows of the attempts that Spark has accepted count, and each once. Rows are in the order of partitions.
    """
    parts = max(1, frame.rdd.getNumPartitions())
    started = Put.begin(
        cache, name, _spark("pyspark.sql.pandas.types").to_arrow_schema(frame.schema), parts=parts, mode=mode
    )

    def send(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = _spark("pyspark").TaskContext.get()
        receipt = started.send(context.partitionId(), _once(batches), attempt=context.taskAttemptId())
        yield pa.record_batch({"receipt": [receipt]})

    try:
        receipts = [row.receipt for row in frame.mapInArrow(send, "receipt string").collect()]
    except BaseException:
        started.abort()
        raise
    return started.publish(receipts)
