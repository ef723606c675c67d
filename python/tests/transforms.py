# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Transforms that other processes can import."""

from __future__ import annotations

import os
from typing import Any

import pyarrow as pa


class OddError(Exception):
    """Can be pickled but not unpickled, as its __init__ requires more arguments than it stores."""

    def __init__(self, row: int, why: str) -> None:
        super().__init__(f"row {row}: {why}")


def fails_on_42(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Raises for one row."""
    if 42 in rows.column("id").to_pylist():
        raise ZeroDivisionError("forty-two")
    return rows


def fails_oddly(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Raises an exception that cannot be sent to another process."""
    raise OddError(rows.column("id")[0].as_py(), "odd")


def ends_its_process(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Kills its process, as the kernel does when memory runs out."""
    os._exit(9)


def first_id(rows: pa.RecordBatch) -> dict[str, Any]:
    """The first row's id, and the id of the process."""
    return {"first": rows.column("id")[0].as_py(), "process": os.getpid()}


def only_id(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Keeps only the id column."""
    return rows.select(["id"])
