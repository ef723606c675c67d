# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The table as a map-style torch dataset, with torch's samplers and default collate_fn."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from kit.deadline import limit
from small import ROWS, small_cache
from wide import rows_of, tokens_of

from kubeflow_datacache import DataCache

pytest.importorskip("torch")
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

from kubeflow_datacache.torch import Columns, Row, TableDataset


@pytest.fixture(scope="module")
def endpoint(server: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cache of the small table."""
    with small_cache(server, tmp_path_factory.mktemp("small")) as one:
        yield one


@pytest.fixture
def table(endpoint: str, connect: Callable[..., DataCache]) -> TableDataset:
    """A dataset of the whole table."""
    return TableDataset(connect(endpoint))


def is_rows(batch: Columns, ids: list[int]) -> None:
    """Asserts that the batch has the rows at ids: a column of numbers, one of lists, and one that stays Arrow."""
    assert batch["id"].tolist() == ids
    assert batch["tokens"].dtype == torch.int32
    assert np.array_equal(batch["tokens"].numpy(), tokens_of(np.array(ids)))
    assert batch["text"].equals(rows_of(np.array(ids)).column("text"))


def test_a_random_sampler(table: TableDataset) -> None:
    def order() -> RandomSampler:
        return RandomSampler(table, generator=torch.Generator().manual_seed(4))

    ids = list(order())
    parts = [ids[i : i + 32] for i in range(0, ROWS, 32)]
    assert sorted(ids) == list(range(ROWS))
    by_default = DataLoader(table, batch_size=32, sampler=order())
    by_hand = DataLoader(table, batch_size=None, sampler=BatchSampler(order(), 32, drop_last=False))
    for loader in (by_default, by_hand):
        for batch, part in zip(loader, parts, strict=True):
            is_rows(batch, part)


def test_rows_by_index(table: TableDataset) -> None:
    row = table[-1]
    assert isinstance(row, Row)
    assert (row["id"].item(), row["text"]) == (ROWS - 1, f"text of row {ROWS - 1}")
    assert torch.equal(row["tokens"], torch.from_numpy(tokens_of(np.array([ROWS - 1]))[0]))
    is_rows(table[[5, 3, 5]], [5, 3, 5])
    is_rows(table[2:6], [2, 3, 4, 5])
    is_rows(table[torch.tensor([7, 1])], [7, 1])
    is_rows(table[torch.arange(ROWS) % 50 == 3], [3, 53, 103, 153])
    is_rows(table[[-1, 0]], [ROWS - 1, 0])
    with pytest.raises(IndexError, match="a mask of 2 bools"):
        table[[True, False]]
    rows = table.__getitems__([4, 0])
    assert [row["id"].item() for row in rows] == [4, 0]
    assert len(rows) == 2
    with pytest.raises(IndexError, match="outside the table"):
        table[ROWS]


def test_a_collate_fn_of_ones_own(table: TableDataset) -> None:
    loader = DataLoader(table, batch_size=3, collate_fn=lambda rows: [row["text"] for row in rows])
    assert next(iter(loader)) == [f"text of row {i}" for i in range(3)]


@pytest.mark.parametrize(
    ("transform", "want"),
    [
        (lambda rows: rows.select(["id"]), {"id": [8, 2]}),
        (lambda rows: {"twice": torch.from_numpy(rows["id"].to_numpy() * 2)}, {"twice": [16, 4]}),
        (lambda rows: [{"one": i.as_py()} for i in rows["id"]], {"one": [8, 2]}),
    ],
    ids=["rows", "columns", "samples"],
)
def test_transforms(
    endpoint: str, connect: Callable[..., DataCache], transform: Callable[[pa.RecordBatch], Any], want: dict[str, Any]
) -> None:
    table = TableDataset(connect(endpoint), columns=["id"], transform=transform)
    (batch,) = DataLoader(table, batch_sampler=[[8, 2]])
    assert {name: column.tolist() for name, column in batch.items()} == want


WORKERS = """
import json, multiprocessing, sys
from torch.utils.data import DataLoader
from kubeflow_datacache import DataCache
from kubeflow_datacache.torch import TableDataset
if __name__ == "__main__":
    multiprocessing.set_forkserver_preload(["kubeflow_datacache.torch"])  # imports torch once for both workers
    table = TableDataset(DataCache(sys.argv[1], retry_seconds=600))
    loader = DataLoader(table, batch_size=20, num_workers=2, multiprocessing_context="forkserver")
    print(json.dumps([[batch["id"].tolist(), batch["text"].to_pylist()] for batch in loader]))
"""


def test_workers_have_connections_of_their_own(endpoint: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(WORKERS)
    for number, (ids, text) in enumerate(json.loads(run([script, endpoint]))):
        want = list(range(number * 20, min(ROWS, number * 20 + 20)))
        assert (ids, text) == (want, [f"text of row {i}" for i in want])


def test_an_order_of_ones_own(endpoint: str, connect: Callable[..., DataCache], tmp_path: Path) -> None:
    """A TableDataset has a table's methods, and takes a table."""
    cache = connect(endpoint)
    order = cache.table().filter("id >= 10").shuffle(seed=3)
    ids = order[:]["id"].to_pylist()
    assert sorted(ids) == list(range(10, ROWS))
    order.save(tmp_path / "order")
    for dataset in (
        TableDataset(order),
        TableDataset(cache).filter("id >= 10").shuffle(seed=3),
        TableDataset.load(tmp_path / "order", cache),
    ):
        assert isinstance(dataset, TableDataset)
        assert len(dataset) == len(ids)
        batches = iter(DataLoader(dataset, batch_size=6))
        for part in (ids[:6], ids[6:12]):
            is_rows(next(batches), part)
    only = TableDataset(order.select(["id"]), transform=lambda rows: {"n": rows["id"].to_numpy()})
    assert next(iter(DataLoader(only, batch_size=2)))["n"].tolist() == ids[:2]


PLAIN = """
import json, sys
from torch.utils.data import DataLoader
from kubeflow_datacache import DataCache
with DataCache(sys.argv[1], retry_seconds=600) as cache:
    order = cache.table().filter("id >= 10").shuffle(seed=3)
    first = next(iter(DataLoader(order, batch_size=6)))
    print(json.dumps([type(first["tokens"]).__name__, first["id"].tolist(), order[:6]["id"].to_pylist()]))
"""


def test_a_table_in_a_data_loader(endpoint: str) -> None:
    """torch's default collate_fn makes tensors of a table's rows in a program that imports nothing of
    kubeflow_datacache.torch."""
    kind, ids, want = json.loads(run(["-c", PLAIN, endpoint]))
    assert (kind, ids) == ("Tensor", want)


def run(arguments: list[Any]) -> str:
    """What a Python program prints."""
    src = str(Path(__file__).parents[1] / "src")
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=limit(),
        env={**os.environ, "PYTHONPATH": os.pathsep.join([src, os.environ.get("PYTHONPATH", "")])},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
