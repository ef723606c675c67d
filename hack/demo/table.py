# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The Iceberg table of the demo, written once by pyiceberg and kept in the cache folder."""

from __future__ import annotations

import itertools
import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog.sql import SqlCatalog

from demo.progress import Progress

FEATURES, CLASSES = 16, 4
_FILES, _ROW_GROUP = 8, 32_768
_VERSION = 1  # increment when the content changes, so that the cached table is recreated


@dataclass(frozen=True)
class Table:
    """The location and shape of the table."""

    metadata: str
    rows: int
    files: int
    row_groups: int


def make(cache: Path, rows: int) -> Table:
    """Returns the table, from the cache folder if an earlier run completed it."""
    folder = cache / f"table-v{_VERSION}-{rows}"
    done = folder / "complete.json"
    if done.exists():
        print(f"table: {rows:,} rows, made by an earlier run: {folder}", flush=True)
        return Table(**json.loads(done.read_text()))
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "warehouse").mkdir(parents=True)
    table = _write(folder, rows)
    done.write_text(json.dumps(asdict(table)))
    return table


def _write(folder: Path, rows: int) -> Table:
    catalog = SqlCatalog(
        "demo",
        uri=f"sqlite:///{folder}/catalog.db",
        warehouse=f"file://{folder}/warehouse",
    )
    catalog.create_namespace("demo")
    random = np.random.default_rng(2026)
    rule = _HiddenRule(random)
    bounds = [rows * i // _FILES for i in range(_FILES + 1)]
    first = _rows(random, rule, 0, bounds[1])
    table = catalog.create_table(
        "demo.examples",
        schema=first.schema,
        properties={"write.parquet.row-group-limit": str(_ROW_GROUP)},
    )
    progress = Progress("table", rows)
    for low, high in itertools.pairwise(bounds):
        table.append(_rows(random, rule, low, high) if low else first)
        progress.update(high, f"{rows:,} rows, {_FILES} files")
    progress.close(f"{rows:,} rows in {_FILES} Parquet files, written by pyiceberg: {folder}")
    groups = sum(-(-(high - low) // _ROW_GROUP) for low, high in itertools.pairwise(bounds))
    return Table(table.metadata_location, rows, _FILES, groups)


class _HiddenRule:
    """The rule that the model learns: a small random network determines the class."""

    def __init__(self, random: np.random.Generator) -> None:
        self._inner = random.standard_normal((FEATURES, 6)).astype(np.float32) * np.float32(0.3)
        self._outer = random.standard_normal((6, CLASSES)).astype(np.float32)

    def label(self, x: np.ndarray) -> np.ndarray:
        return np.argmax(np.tanh(x @ self._inner) @ self._outer, axis=1)


def _rows(random: np.random.Generator, rule: _HiddenRule, low: int, high: int) -> pa.Table:
    n = high - low
    x = random.standard_normal((n, FEATURES)).astype(np.float32)
    offsets = pa.array(np.arange(0, n * FEATURES + 1, FEATURES, dtype=np.int32))
    ids = pa.array(np.arange(low, high))
    moods = pa.array(["calm", "brisk", "odd", "plain"]).take(pa.array(random.integers(0, 4, n)))
    return pa.table(
        {
            "id": ids,
            "features": pa.ListArray.from_arrays(offsets, pa.array(x.reshape(-1))),
            "text": pc.call_function(
                "binary_join_element_wise",
                ["example", ids.cast(pa.string()), moods, " "],
            ),
            "label": pa.array(rule.label(x)),
        }
    )
