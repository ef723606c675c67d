# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A filter keeps exactly the rows that satisfy its WHERE clause, whatever files and row groups are pruned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import duckdb
import pytest
from canon import difference, rows_of
from client import Client
from filters import FILTERS, REFUSED, Filter
from lake import Made, Selection
from server import Cache, Caches
from test_rows import failure

Table = Callable[[str], Made]
Connect = Callable[[Cache], Client]


@pytest.mark.parametrize("filter", FILTERS, ids=lambda f: f.where)
def test_a_filter_keeps_what_pyiceberg_and_duckdb_keep(
    filter: Filter,
    table: Table,
    caches: Caches,
    connect: Connect,
) -> None:
    made = table("plain")
    got = rows_of(connect(caches.of(made, Selection(where=filter.where))).table())
    assert difference(got, rows_of(made.scan(where=filter.expression))) == ""
    with duckdb.connect() as db:
        files = made.files()
        want = db.sql(f"SELECT * FROM read_parquet({files}) WHERE {filter.where}").to_arrow_table()
    assert difference(got, rows_of(want)) == ""


@pytest.mark.parametrize(
    "name", ["by_identity", "by_bucket", "by_day", "by_truncate", "repartitioned", "many_files", "foreign"]
)
@pytest.mark.parametrize("index", [0, 13, 25, 29, 31])
def test_a_filter_over_other_layouts(name: str, index: int, table: Table, caches: Caches, connect: Connect) -> None:
    made = table(name)
    got = connect(caches.of(made, Selection(where=FILTERS[index].where))).table()
    assert difference(rows_of(got), rows_of(made.scan(where=FILTERS[index].expression))) == ""


def test_a_filter_on_a_column_that_is_not_served(table: Table, caches: Caches, connect: Connect) -> None:
    made = table("plain")
    got = connect(caches.of(made, Selection(columns=("name",), where="small IS NULL AND id < 5000"))).table()
    want = [row["name"] for row in made.scan().to_pylist() if row["small"] is None and row["id"] < 5000]
    assert got.column_names == ["name"]
    assert Counter(got.column("name").to_pylist()) == Counter(want)


def test_a_filter_on_a_column_that_older_files_do_not_have(table: Table, caches: Caches, connect: Connect) -> None:
    made = table("evolved")
    got = connect(caches.of(made, Selection(where="extra IS NULL AND id < 10"))).table()
    want = [row for row in made.scan().to_pylist() if row["extra"] is None and row["id"] < 10]
    assert got.num_rows == len(want) == 10


@pytest.mark.parametrize(("where", "says"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_no_filter_is_refused(where: str, says: str, table: Table, private: Callable[..., Cache]) -> None:
    cache = private(["--metadata", table("plain").metadata, "--filter", where])
    assert says in failure(cache)
