# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Random tables with little memory and spill files.

Each stream has all its rows, whatever columns it reads, or the cache says what it needs.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from client import Client
from seeds import seeds
from server import Cache

PROCESS = 96 << 20  # of the limit of memory, for the process itself
BYTES = 48 << 20  # of a table, about


@dataclass(frozen=True)
class Case:
    """A table, the memory for it, and what is read of it."""

    rows: int
    width: int  # mean bytes of a row
    group: int  # rows of a row group
    memory: int
    nodes: int
    columns: list[str] | None
    readers: int
    shuffle: bool
    clump: int
    batch: int

    @classmethod
    def draw(cls, seed: int) -> Case:
        chance = random.Random(seed)
        width = int(2 ** chance.uniform(3, 16))
        rows = min(BYTES // width, 100_000)
        return cls(
            rows, width,
            group=max(int(rows * 2 ** chance.uniform(-8, 0)), 1),
            memory=int(rows * width * chance.uniform(0.2, 1.2)) + (chance.randrange(8, 25) << 20),
            nodes=chance.choice([1, 1, 3]),
            columns=chance.choice([None, ["id"], ["id"], ["id", "class"], ["id", "data"]]),
            readers=chance.choice([1, 2, 5]),
            shuffle=chance.random() < 0.6,
            clump=chance.choice([1, 16, 1000]),
            batch=chance.choice([64, 500, 3000]),
        )  # fmt: skip

    def table(self, seed: int) -> pa.Table:
        """Rows whose data is random bytes of lengths from half to one and a half of the mean."""
        noise = np.random.default_rng(seed)
        ends = np.concatenate([[0], np.cumsum(noise.integers(self.width // 2, self.width * 3 // 2, self.rows))])
        data = pa.py_buffer(noise.bytes(int(ends[-1])))
        binary = pa.Array.from_buffers(pa.binary(), self.rows, [None, pa.py_buffer(ends.astype(np.int32)), data])
        return pa.table({"id": np.arange(self.rows), "class": noise.integers(0, 9, self.rows), "data": binary})


# Found by hand: a message of one narrow column needed all rows of the table in memory, shuffled and in order.
FOUND = [
    Case(60_000, 1_000, 937, 48 << 20, 1, ["id"], 1, True, 1, 500),
    Case(60_000, 1_000, 937, 48 << 20, 1, ["id"], 1, False, 1, 500),
]


def check(case: Case, seed: int, private: Callable[..., Cache], connect: Callable[[Cache], Client], path: Path) -> None:
    """Reads an epoch by all readers at once."""
    table = case.table(seed)
    (path / "table").mkdir()
    pq.write_table(table, path / "table" / "0.parquet", compression="none", row_group_size=case.group)
    environment = {"SPILL_DIR": str(path / "spill"), "MEMORY_LIMIT": str(PROCESS + case.memory)}
    cache = private(["--files", str(path / "table")], nodes=case.nodes, env=environment)
    status = cache.wait("Ready", "Failed")
    if status["state"] == "Failed":
        assert re.search(r"\d+ bytes .* are needed .* raise --memory-limit", status["reason"])
        return

    def read(rank: int) -> pa.Table:
        client = connect(cache)
        order = {"seed": 7, "epoch": 1, "shuffle": case.shuffle, "clump": case.clump, "global_batch": case.batch}
        columns: dict[str, Any] = {} if case.columns is None else {"columns": case.columns}
        share = {"tail": "keep", "rank": rank, "world": case.readers}
        return client.read(client.command(kind="epoch", **order, **share, **columns))

    with ThreadPoolExecutor(case.readers) as readers:
        got = pa.concat_tables(readers.map(read, range(case.readers)))
    want = table if case.columns is None else table.select(case.columns)
    assert got.sort_by("id").equals(want)


@pytest.mark.parametrize("number", range(len(FOUND)))
def test_found(number: int, private: Callable[..., Cache], connect: Callable[[Cache], Client], tmp_path: Path) -> None:
    check(FOUND[number], 1, private, connect, tmp_path)


@pytest.mark.parametrize("number", [0, *(pytest.param(number, marks=pytest.mark.night) for number in range(1, 60))])
def test_random(number: int, private: Callable[..., Cache], connect: Callable[[Cache], Client], tmp_path: Path) -> None:
    seed = seeds(60)[number]
    case = Case.draw(seed)
    print(f"seed {seed}: {case}")
    check(case, seed, private, connect, tmp_path)
