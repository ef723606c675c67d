# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A cache serves exactly the rows of the table: none missing, repeated or changed."""

from __future__ import annotations

from collections.abc import Callable

import duckdb
import pyarrow as pa
import pytest
import tables
from canon import difference, rows_of
from client import Client
from lake import Lake, Made, Selection
from seeds import seeds
from server import Cache, Caches, Mode

from kit.deadline import limit

Table = Callable[[str], Made]
Connect = Callable[[Cache], Client]

RANDOM_SEEDS = seeds(24)


def check_equal(got: pa.Table, want: pa.Table) -> None:
    """Asserts that both tables have the same columns in the same order, and the same multiset of rows."""
    assert got.column_names == want.column_names
    assert difference(rows_of(got), rows_of(want)) == ""


@pytest.mark.parametrize("name", tables.BY_NAME)
def test_a_cache_serves_what_pyiceberg_scans(name: str, table: Table, caches: Caches, connect: Connect) -> None:
    made = table(name)
    got = connect(caches.of(made)).table()
    check_equal(got, made.scan())


@pytest.mark.parametrize("name", ["plain", "types", "evolved", "many_files"])
def test_separate_processes_serve_the_same_rows_in_the_same_order(
    name: str, table: Table, caches: Caches, connect: Connect
) -> None:
    made = table(name)
    local = connect(caches.of(made)).table()
    cluster = connect(caches.of(made, mode="cluster")).table()
    assert cluster.equals(local)


@pytest.mark.parametrize("seed", RANDOM_SEEDS)
def test_random_tables(seed: int, lake: Lake, caches: Caches, connect: Connect) -> None:
    made = lake.table(f"random_{seed}", tables.random_table(seed))
    got = connect(caches.of(made, nodes=1 + seed % 4)).table()
    check_equal(got, made.scan())


@pytest.mark.parametrize("seed", RANDOM_SEEDS[::2])
def test_random_evolution(seed: int, lake: Lake, caches: Caches, connect: Connect) -> None:
    made = lake.table(f"evolving_{seed}", tables.evolving_table(seed))
    check_equal(connect(caches.of(made)).table(), made.scan())


@pytest.mark.parametrize("name", tables.READ_AS_FILES)
def test_a_cache_serves_what_duckdb_reads_from_the_files(
    name: str, table: Table, caches: Caches, connect: Connect
) -> None:
    made = table(name)
    with duckdb.connect() as db:
        want = db.sql("SELECT * FROM read_parquet($files)", params={"files": made.files()}).to_arrow_table()
    check_equal(connect(caches.of(made)).table(), want)


@pytest.mark.parametrize("name", ["types", "types_required"])
def test_types_are_the_ones_that_the_contract_names(name: str, table: Table, caches: Caches, connect: Connect) -> None:
    got = connect(caches.of(table(name))).table().schema
    kinds = tables.every_kind() if name == "types" else list(tables.FLAT)
    assert {f.name: f.type for f in got} == {k.name: k.arrow for k in kinds}
    assert not any(f.metadata for f in got), "fields carry metadata of the file format"
    assert all(f.nullable == (name == "types") for f in got)


def test_a_cache_of_some_columns_keeps_the_order_of_the_table(table: Table, caches: Caches, connect: Connect) -> None:
    made = table("plain")
    columns = ("name", "id", "seen")
    got = connect(caches.of(made, Selection(columns=columns))).table()
    check_equal(got, made.scan(columns=columns))


def test_a_request_gets_its_columns_in_the_order_asked(table: Table, caches: Caches, connect: Connect) -> None:
    made = table("plain")
    columns = ["name", "id", "seen"]
    check_equal(connect(caches.of(made)).table(columns), made.scan().select(columns))


@pytest.mark.parametrize(
    "columns", [("struct",), ("list_struct", "map_int"), ("struct_deep",), ("uuid", "decimal38_10")], ids="-".join
)
def test_a_projection_of_nested_columns(
    columns: tuple[str, ...], table: Table, caches: Caches, connect: Connect
) -> None:
    made = table("types")
    got = connect(caches.of(made)).table(list(columns))
    check_equal(got, made.scan().select(columns))


def test_a_projection_of_an_evolved_table_goes_by_field_not_by_name(
    table: Table, caches: Caches, connect: Connect
) -> None:
    made = table("evolved")
    got = connect(caches.of(made, Selection(columns=("gone", "name", "place")))).table()
    check_equal(got, made.scan(columns=("gone", "name", "place")))
    assert got.column("gone").null_count == 200, (
        "the dropped column's values came back under the new column of its name"
    )


@pytest.mark.parametrize("nodes", [1, 2, 3, 5])
@pytest.mark.parametrize("name", ["plain", "many_files", "nine_rows", "by_bucket", "types"])
def test_the_order_does_not_depend_on_the_number_of_nodes(
    name: str, nodes: int, table: Table, caches: Caches, connect: Connect
) -> None:
    made = table(name)
    assert connect(caches.of(made, nodes=nodes)).table().equals(connect(caches.of(made)).table())


def test_the_order_is_the_same_in_every_read_and_after_a_restart(
    mode: Mode, table: Table, private: Callable[..., Cache], connect: Connect
) -> None:
    made = table("plain")
    reads: list[pa.Table] = []
    for _ in range(2):
        cache = private(["--metadata", made.metadata], mode=mode)
        cache.wait("Ready")
        client = connect(cache)
        reads += [client.table(), client.table()]
        cache.stop()
    assert all(read.equals(reads[0]) for read in reads)


def test_rows_of_a_file_stay_together_and_files_come_in_the_order_they_were_written(
    table: Table, caches: Caches, connect: Connect
) -> None:
    """Plan order is (data sequence number, file, row group): an append never moves the rows before it."""
    ids = connect(caches.of(table("plain"))).table().column("id").to_pylist()
    assert ids == list(range(10_001))


class TestTimeTravel:
    """All ways to name a snapshot, compared with pyiceberg's scan of it."""

    @pytest.mark.parametrize("index", range(5))
    def test_by_snapshot_id(self, index: int, table: Table, caches: Caches, connect: Connect) -> None:
        made = table("history")
        snapshot = made.open().metadata.snapshots[index].snapshot_id
        got = connect(caches.of(made, Selection(snapshot_id=snapshot))).table()
        check_equal(got, made.scan(snapshot_id=snapshot))

    @pytest.mark.parametrize("ref", ["two", "side", "main"])
    def test_by_tag_and_branch(self, ref: str, table: Table, caches: Caches, connect: Connect) -> None:
        made = table("history")
        snapshot = made.open().metadata.refs[ref].snapshot_id
        got = connect(caches.of(made, Selection(ref=ref))).table()
        assert rows_of(got) == rows_of(made.scan(snapshot_id=snapshot).select(got.column_names))

    @pytest.mark.parametrize("index", range(3))
    def test_by_time(self, index: int, table: Table, caches: Caches, connect: Connect) -> None:
        made = table("history")
        entry = made.open().metadata.snapshot_log[index]
        at = pa.scalar(entry.timestamp_ms, pa.timestamp("ms", "UTC")).as_py().isoformat(timespec="milliseconds")
        got = connect(caches.of(made, Selection(as_of=at))).table()
        check_equal(got, made.scan(snapshot_id=entry.snapshot_id))

    @pytest.mark.parametrize(
        ("flags", "says"),
        [
            (["--snapshot-id", "42"], "42"),
            (["--ref", "no-such-ref"], "no-such-ref"),
            (["--as-of", "2001-01-01T00:00:00Z"], "2001-01-01"),
            (["--columns", "id,nope"], "nope"),
            (["--filter", "nope > 1"], "nope"),
            (["--filter", "id >"], "--filter"),
        ],
        ids=lambda value: "-".join(value) if isinstance(value, list) else "",
    )
    def test_what_is_not_there_is_refused_with_its_name(
        self, flags: list[str], says: str, table: Table, private: Callable[..., Cache]
    ) -> None:
        cache = private(["--metadata", table("history").metadata, *flags])
        reason = failure(cache)
        assert says.removeprefix("--") in reason


def failure(cache: Cache) -> str:
    """The error of a cache that cannot serve: the reason of state Failed, or the message of a process that exits at
    start."""
    try:
        return cache.wait("Failed")["reason"]
    except AssertionError:
        (process,) = cache.processes.values()
        assert process.wait(limit()) not in (0, 2), "a crash is no way to say so"
        return cache.log("local")
