# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The consumer's check of the loader bench."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchlib.tables import SEQUENCE, Table, ensure
from loaderbench import shapes
from loaderbench.case import BATCH, Batch
from loaderbench.check import Check


@pytest.fixture(scope="module", params=shapes.SHAPES)
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Table:
    return ensure(request.param, 1e-6, tmp_path_factory.mktemp("data"), lambda _: None, shapes.SHAPES)


def batches(table: Table) -> list[Batch]:
    """The table's batches as a loader would return them, in numpy."""
    out = []
    for file in table.files:
        for batch in pq.read_table(file).to_batches(BATCH):
            out.append({name: dense(batch.column(name)) for name in batch.schema.names})
    return out


def dense(column: pa.Array) -> object:
    if pa.types.is_binary(column.type):
        return [np.frombuffer(value, np.uint8) for value in column.to_pylist()]
    if pa.types.is_list(column.type):
        return column.flatten().to_numpy().reshape(-1, SEQUENCE)
    return column.to_numpy()


def checked(table: Table, given: list[Batch], whole: bool = True) -> Check:
    check = Check(shapes.IDS[table.name])
    for batch in given:
        check.add(batch)
    check.flush()
    check.verify(shapes.truth(table), whole)
    return check


def test_the_tables_rows_pass_in_any_order(table: Table) -> None:
    assert checked(table, batches(table)[::-1]).rows == table.rows


def test_bytes_are_those_of_the_rows_looked_at(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checked(table, batches(table)).bytes == pytest.approx(size(table), rel=0.05)
    monkeypatch.setattr("loaderbench.check.GROUPS_A_LOOK", 1)
    assert checked(table, batches(table)).bytes == size(table)


def size(table: Table) -> int:
    return sum(np.asarray(row).nbytes for b in batches(table) for c in b.values() for row in c)


def test_a_part_of_an_epoch_passes_only_as_a_part(table: Table) -> None:
    part = batches(table)[:2]
    assert checked(table, part, whole=False).rows == 2 * BATCH
    with pytest.raises(ValueError, match="came in a whole epoch"):
        checked(table, part)


def test_rows_that_come_twice_are_refused(table: Table) -> None:
    given = batches(table)
    with pytest.raises(ValueError, match=f"{BATCH} of {table.rows} rows came twice"):
        checked(table, [*given[1:], given[1]])


@pytest.mark.parametrize(("groups", "wrong"), [(16, 0), (1, -1)])
def test_other_values_are_refused_where_it_looks(
    table: Table, monkeypatch: pytest.MonkeyPatch, groups: int, wrong: int
) -> None:
    monkeypatch.setattr("loaderbench.check.GROUPS_A_LOOK", groups)
    given = batches(table)
    name = next(n for n in given[0] if n != shapes.IDS[table.name])
    given[wrong] = given[wrong] | {name: given[1][name]}
    with pytest.raises(ValueError, match="are not the table's"):
        checked(table, given)


@pytest.mark.parametrize("change", [lambda a: a.astype(np.int16), lambda a: a.astype(np.float32)])
def test_other_types_are_refused(table: Table, change: Callable[[np.ndarray], np.ndarray]) -> None:
    ids = shapes.IDS[table.name]
    first = batches(table)[0]
    with pytest.raises(TypeError, match="which the table does not have"):
        checked(table, [first | {ids: change(first[ids])}])


def test_tables_are_kept(table: Table) -> None:
    root = Path(table.metadata).parents[3]
    assert ensure(table.name, 1e-6, root, lambda _: pytest.fail("made again"), shapes.SHAPES) == table
