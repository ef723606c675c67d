# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Spilled rows that are so long that they are read one by one."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from client import Client
from seeds import seeds
from server import Cache
from test_spill import MEMORY, epoch, flip, metric, spilled

Connect = Callable[[Cache], Client]

ROWS, FILES = 1_600, 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Parquet files with about 130 MB of rows of 40 to 120 KB: bytes that may be null, a list of text, and a label."""
    path, noise = tmp_path_factory.mktemp("long"), np.random.default_rng(57)
    for i in range(FILES):
        n = ROWS // FILES
        words = [[f"word {noise.integers(1 << 40)}" for _ in range(noise.integers(0, 20))] for _ in range(n)]
        table = pa.table(
            {
                "id": pa.array(range(i * n, (i + 1) * n)),
                "image": pa.array(
                    [
                        None if noise.random() < 0.05 else noise.bytes(int(noise.integers(40_000, 120_000)))
                        for _ in range(n)
                    ]
                ),
                "words": pa.array(words, pa.list_(pa.string())),
                "label": pa.array(noise.integers(0, 1000, n), pa.int32()),
            }
        )
        pq.write_table(table, path / f"{i}.parquet", compression="none", row_group_size=50)
    return path


def test_each_row_is_read_once_an_epoch(
    private: Callable[..., Cache], connect: Connect, folder: Path, tmp_path: Path
) -> None:
    plain, cache = private(["--files", str(folder)], nodes=1), spilled(private, folder, tmp_path / "spill")
    plain.wait("Ready")
    stored = cache.wait("Ready")["bytes"]
    want, got = connect(plain), connect(cache)
    before, asked = metric(cache, "spill_read_bytes_total"), random.Random(2).sample(range(ROWS), k=10)
    taken = [client.take(client.command(kind="take").endpoints[0], asked, [5]) for client in (want, got)]
    assert taken[0] == taken[1]
    assert metric(cache, "spill_read_bytes_total") - before < 10 * 400_000
    for number in range(3):
        before = metric(cache, "spill_read_bytes_total")
        assert epoch(got, number).equals(epoch(want, number)), number
        read = metric(cache, "spill_read_bytes_total") - before
        assert read < 1.3 * stored, f"epoch {number} read {read:.0f} bytes for {stored} of rows"


@pytest.mark.night
@pytest.mark.parametrize("seed", seeds(2))
def test_flipped_bytes_of_long_rows_are_never_served(
    private: Callable[..., Cache], connect: Connect, folder: Path, tmp_path: Path, seed: int
) -> None:
    cache, chooser = spilled(private, folder, tmp_path / "spill", MEMORY), random.Random(seed)
    cache.wait("Ready")
    client = connect(cache)
    want = client.table()
    for number in range(3):
        flip(tmp_path / "spill", 50, chooser)
        assert epoch(client, number).sort_by("id").equals(want), number
    assert metric(cache, "spill_repaired_chunks_total") > 0
