# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The two workloads of MLPerf Storage v3.0 whose samples are rows of Parquet files, made smaller."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

# Values of the five columns of a sample of flux, float32: 2,164,832 bytes together.
_FLUX: Final = {"text": 524_288, "clip": 768, "mean": 8064, "deviation": 8064, "rest": 24}
# Columns of dlrm: those that a step reads have 160 bytes a row, all 200 have 761.
_DENSE, _SPARSE, _OTHERS, _NARROW = 13, 26, 147, 13
EPOCHS: Final = 2
BY_SAMPLE: Final = "pyarrow by sample"
Random = np.random.Generator


@dataclass(frozen=True)
class Workload:
    """What an accelerator reads and how long it computes.

    batch, step: samples, and seconds of computation, of a step on a B200. shorter: batch and step are divided by it,
    which keeps the rate. longer: the step alone is multiplied by it. bar: the least utilization of an accelerator that
    counts. few_files: how many files are read, once, sample by sample, which takes long for short samples.
    """

    name: str
    batch: int
    step: float
    shorter: int
    longer: int
    bar: float
    files: int
    few_files: int
    file_rows: int
    group_rows: int
    columns: tuple[str, ...]
    row_bytes: int
    table: Callable[[Random, int], pa.Table]

    @property
    def rows(self) -> int:
        """Rows of a step here."""
        return self.batch // self.shorter

    @property
    def seconds(self) -> float:
        """Seconds of computation of a step here."""
        return self.step / self.shorter * self.longer

    def read_by(self, loader: str) -> tuple[int, int]:
        """The number of files that a loader reads, and of epochs."""
        few = loader == BY_SAMPLE and self.few_files < self.files
        return (self.few_files, 1) if few else (self.files, EPOCHS)

    def gigabytes(self, files: int) -> float:
        """What some files hold in the columns that are read, decoded."""
        return files * self.file_rows * self.row_bytes / 1e9

    def write(self, folder: Path) -> None:
        """Writes the files, unless an earlier run did."""
        done = folder / "complete"
        if done.exists():
            return
        random = np.random.default_rng(1)
        for path in self.paths(folder):
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(self.table(random, self.file_rows), path, row_group_size=self.group_rows)
        done.touch()

    def paths(self, folder: Path) -> Iterator[Path]:
        """The data files."""
        return (folder / "data" / f"part-{i:03}.parquet" for i in range(self.files))


def _flux(random: Random, rows: int) -> pa.Table:
    return pa.table({
        name: pa.FixedSizeListArray.from_arrays(pa.array(random.random(rows * length, np.float32)), length)
        for name, length in _FLUX.items()
    })  # fmt: skip


def _dlrm(random: Random, rows: int) -> pa.Table:
    columns = {"label": random.integers(0, 2, rows, np.int32)}
    columns |= {f"dense{i}": random.random(rows, np.float32) for i in range(_DENSE)}
    columns |= {f"sparse{i}": random.integers(0, 1 << 24, rows, np.int32) for i in range(_SPARSE)}
    columns |= {f"other{i}": random.integers(0, 1 << 24, rows, np.int32) for i in range(_OTHERS)}
    columns |= {f"narrow{i}": random.integers(0, 256, rows, np.uint8) for i in range(_NARROW)}
    return pa.table({name: pa.array(values) for name, values in columns.items()})


WORKLOADS: Final = {
    each.name: each
    for each in (
        Workload(
            name="flux",
            batch=48,
            step=1.35,
            shorter=4,
            longer=1,
            bar=0.90,
            files=12,
            few_files=12,
            file_rows=48,
            group_rows=8,
            columns=tuple(_FLUX),
            row_bytes=4 * sum(_FLUX.values()),
            table=_flux,
        ),
        Workload(
            name="dlrm",
            batch=16_384,
            step=0.375e-3,
            shorter=1,
            longer=200,
            bar=0.70,
            files=32,
            few_files=2,
            file_rows=49_152,
            group_rows=6144,
            row_bytes=4 * (1 + _DENSE + _SPARSE),
            table=_dlrm,
            columns=("label", *(f"dense{i}" for i in range(_DENSE)), *(f"sparse{i}" for i in range(_SPARSE))),
        ),
    )
}
