# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tables written without an Iceberg library, compared with a model: random ones, and one for each thing they found."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from fuzz.campaign import campaign
from fuzz.conditions import Condition
from fuzz.corrupt import Damage
from fuzz.run import check, refusal
from fuzz.schema import Field, Map, Primitive, Struct
from fuzz.simple import data_file, table_of, whole
from fuzz.table import File, Layout, Metrics, Spec
from seeds import seeds

#: How many random tables are compared; make fuzz-tables compares 1,000.
TABLES = int(os.environ.get("FUZZ_TABLES", "60"))

INT, STRING = Primitive("int"), Primitive("string")


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Path:
    """The cacheserver binary."""
    return request.config.getoption("--server").resolve()  # pyright: ignore[reportAttributeAccessIssue,reportOptionalMemberAccess]


def test_random_tables_have_the_rows_of_the_model(server: Path) -> None:
    failed = [
        f"seed {seed}: {problem}\n  repeat: make fuzz-tables TABLES=1 SEED={seed}"
        for seed, problem in campaign(server, seeds(TABLES, failed=[334, 1126, 1231, 1377, 70033]), os.cpu_count() or 1)
        if problem
    ]
    assert not failed, "\n".join(failed)


def _map(key: int, value: int) -> Map:
    return Map(Field(key, "key", INT, required=True), Field(value, "value", STRING))


def test_a_struct_keeps_its_second_map_when_the_first_was_dropped(server: Path, tmp_path: Path) -> None:
    """pqarrow reads all maps of a struct of which it reads anything."""
    one, two = Field(2, "m", _map(4, 5)), Field(3, "n", _map(6, 7))
    rows = [{1: {2: [(1, "dropped")], 3: [(2, "kept")]}}, {1: {2: [], 3: None}}]
    before, after = (Field(1, "s", Struct((one, two))),), (Field(1, "s", Struct((two,))),)
    check(whole(table_of([before, after], [[data_file(before, rows)]])), server, tmp_path)


def test_a_filter_on_a_struct_with_a_map_that_is_not_selected(server: Path, tmp_path: Path) -> None:
    fields = (Field(1, "s", Struct((Field(2, "m", _map(4, 5)), Field(3, "x", INT)))), Field(9, "id", INT))
    rows = [{1: {2: [(1, "a")], 3: 5}, 9: 1}, {1: {2: [(2, "b")], 3: 6}, 9: 2}]
    where = Condition("s.x = 6", lambda row: row[1][3] == 6)
    flags = ["--columns", "id", "--filter", where.text]
    case = whole(table_of([fields], [[data_file(fields, rows)]]), flags=flags, columns=("id",), where=where)
    check(case, server, tmp_path)


@pytest.mark.parametrize("content", ["positions", "equality"])
def test_a_delete_file_with_an_empty_row_group(content: str, server: Path, tmp_path: Path) -> None:
    fields = (Field(1, "id", INT),)
    data = data_file(fields, [{1: 1}, {1: 2}, {1: 3}])
    layout = Layout([1, 0])
    if content == "positions":
        deletes = File(
            "data/d.parquet", "positions", Spec(0), (), (), [{}], layout, Metrics("none"), positions=[(data, 1)]
        )
    else:
        deletes = File(
            "data/d.parquet", "equality", Spec(0), (), fields, [{1: 2}], layout, Metrics("none"), equality=(1,)
        )
    check(whole(table_of([fields], [[data], [deletes]])), server, tmp_path)


@pytest.mark.parametrize("entries", ["one manifest", "two manifests"])
def test_a_data_file_that_manifests_list_twice_is_refused(entries: str, server: Path, tmp_path: Path) -> None:
    fields = (Field(1, "id", INT),)
    data = data_file(fields, [{1: 1}, {1: 2}])
    commits = [[data, data]] if entries == "one manifest" else [[data], [data]]
    assert "data/a.parquet twice" in refusal(whole(table_of([fields], commits)), server, tmp_path)


def test_a_manifest_whose_content_is_neither_data_nor_deletes_is_refused(server: Path, tmp_path: Path) -> None:
    fields = (Field(1, "id", INT),)
    table = table_of([fields], [[data_file(fields, [{1: 1}])]])

    def tamper(kind: str, path: str, value: Any) -> Any:
        return [{**value[0], "content": 7}] if kind == "manifests" else value

    case = whole(table)
    case.damage = Damage("content", "exact", tamper)
    assert "content is 7, neither data (0) nor deletes (1)" in refusal(case, server, tmp_path)


def test_a_filter_whose_part_on_row_lineage_can_be_left_out(server: Path, tmp_path: Path) -> None:
    """Binding makes a constant of it, so the bound filter does not name the column that no schema has."""
    fields = (Field(1, "id", INT, required=True),)
    table = table_of([fields], [[data_file(fields, [{1: 1}, {1: 2}])]], version=3)
    where = Condition("id IS NOT NULL OR _row_id < 0", lambda row: True)
    check(whole(table, flags=["--filter", where.text], where=where), server, tmp_path)
