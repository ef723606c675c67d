# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A cache of a folder of Parquet files serves the rows of pyarrow.dataset, in its order, or says why it does not."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable
from pathlib import Path

import folders
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from canon import row_digests
from client import Client, metadata
from server import Cache, Caches, Mode

Connect = Callable[[Cache], Client]
Private = Callable[..., Cache]


def check_equal(got: pa.Table, want: pa.Table) -> None:
    """Asserts that both tables have the same columns, rows and order."""
    assert got.column_names == want.column_names
    for name in want.column_names:
        wanted = want.column(name)
        if pa.types.is_string(wanted.type) and pa.types.is_date(got.column(name).type):
            want = want.set_column(want.column_names.index(name), name, wanted.cast(pa.date32()))
    assert row_digests(got) == row_digests(want)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that is named like one of a user."""
    return tmp_path / "a folder"


@pytest.mark.parametrize("name", folders.FOLDERS)
def test_a_cache_serves_what_pyarrow_reads(name: str, folder: Path, private: Private, connect: Connect) -> None:
    folders.FOLDERS[name](folder)
    cache = private(["--files", str(folder)], nodes=3)
    cache.wait("Ready")
    check_equal(connect(cache).table(), folders.scan(folder))


def test_features_of_datasets_reach_readers(folder: Path, private: Private, connect: Connect) -> None:
    """What datasets knows of a column, such as the names of its classes, is in the metadata of each schema."""
    features = b'{"info": {"features": {"label": {"names": ["no", "yes"], "_type": "ClassLabel"}}}}'
    table = pa.table({"text": ["a", "b"], "label": [0, 1]})
    folder.mkdir()
    pq.write_table(table.replace_schema_metadata({"huggingface": features}), folder / "0.parquet")
    pq.write_table(table, folder / "1.parquet")
    cache = private(["--files", str(folder)])
    cache.wait("Ready")
    client = connect(cache)
    for read in (client.table(), client.table(["label"])):
        assert read.schema.metadata == {b"huggingface": features}
    described = client.command(kind="shard", index=0, total=1, columns=["label"])
    assert described.schema.metadata == {b"huggingface": features}


def test_types_are_those_of_the_files(folder: Path, private: Private, connect: Connect) -> None:
    folders.types(folder)
    cache = private(["--files", str(folder)])
    cache.wait("Ready")
    got, want = connect(cache).table().schema, folders.every_type(random.Random(0), 1).schema
    served = {"large": pa.string(), "dictionary": pa.string(), "json": pa.string()}
    for name in ("vector", "pixels", "points", "pages", "tensor"):
        assert got.field(name).type == want.field(name).type, name
    assert {f.name: f.type for f in got} == {f.name: served.get(f.name, f.type) for f in want}
    assert not any(f.metadata for f in got)


def test_columns_and_a_filter(mode: Mode, folder: Path, private: Private, connect: Connect) -> None:
    folders.duck(folder)
    where = "part <> 1 AND id >= 50 AND text <> 'v60'"
    cache = private(["--files", str(folder), "--columns", "part,text", "--filter", where], mode=mode)
    cache.wait("Ready")
    keep = (ds.field("part") != 1) & (ds.field("id") >= 50) & (ds.field("text") != "v60")
    check_equal(connect(cache).table(), folders.scan(folder).filter(keep).select(["text", "part"]))


def test_filters_on_types_that_iceberg_lacks(folder: Path, private: Private, connect: Connect) -> None:
    """The same rows by the client's filter, by one at the load, and by pyarrow's own comparison; each with pruning."""
    limits = {bits: 1 << bits for bits in (8, 16, 32, 64)}
    unsigned = {
        f"u{b}": pa.array([*range(3), (n >> 1) - 1, n >> 1, n - 1, None], getattr(pa, f"uint{b}")())
        for b, n in limits.items()
    }
    signed = {
        f"i{b}": pa.array([-(1 << b - 1), -1, 0, 1, 7, (1 << b - 1) - 1, None], getattr(pa, f"int{b}")())
        for b in (8, 16)
    }
    others = {
        "half": pa.array([-1.5, 0.0, 0.25, 65504.0, float("nan"), float("inf"), None], pa.float16()),
        "clock": pa.array([0, 1, 999, 1000, 86_399_999, None, None], pa.time32("ms")),
        "lasts": pa.array([-1, 0, 1, 1 << 40, None, 7, 8], pa.duration("us")),
        "at": pa.array([0, 1, 3_600_000, -1, None, 7, 8], pa.timestamp("ms", "Europe/Berlin")),
        "key": pa.array([bytes([i]) * 16 for i in (0, 1, 127, 128, 255)] + [None] * 2, pa.uuid()),
        "doc": pa.array(['{"a": 1}', "[]", None, "{}", "1", "2", "3"], pa.json_()),
        "row": pa.array(range(7), pa.int32()),
    }
    folders.write(folder, "f.parquet", pa.table({**unsigned, **signed, **others}), row_group_size=2)
    clauses: dict[str, list[int]] = {
        **{f"u{b} >= {1 << b - 1}": [4, 5] for b in (8, 16, 32, 64)},
        **{f"u{b} < {1 << b - 1}": [0, 1, 2, 3] for b in (8, 16, 32, 64)},
        **{f"u{b} IN (1, {(1 << b) - 1})": [1, 5] for b in (8, 16, 32, 64)},
        **{f"NOT u{b} <> {(1 << b) - 1}": [5] for b in (8, 16, 32, 64)},
        **{f"i{b} < 0": [0, 1] for b in (8, 16)},
        **{f"i{b} BETWEEN -1 AND 7": [1, 2, 3, 4] for b in (8, 16)},
        "half > 0.2": [2, 3, 5],
        "half IS NAN": [4],
        "half = 0.25 OR half <= -1.5": [0, 2],
        "clock >= TIME '00:00:01'": [3, 4],
        "clock = '00:00:00.999'": [2],
        "u64 IS NULL": [6],
        "lasts > 0 AND lasts <> 8": [2, 3, 5],
        "lasts IN (-1, 7)": [0, 5],
        "at >= TIMESTAMP '1970-01-01T02:00:00+01:00'": [2],
        "key >= '80808080-8080-8080-8080-808080808080'": [3, 4],
        "key = '01010101-0101-0101-0101-010101010101'": [1],
        "doc = '{}' OR doc LIKE '{%'": [0, 3],
    }
    whole = private(["--files", str(folder)])
    whole.wait("Ready")
    client = connect(whole)
    for where, want in clauses.items():
        assert client.read(client.command(kind="shard", index=0, total=1, filter=where))["row"].to_pylist() == want, (
            where
        )
    for where in (
        "u64 >= 9223372036854775808",
        "u32 > 2147483647 AND u8 <> 255",
        "half > 0.2",
        "clock >= TIME '00:00:01'",
        "lasts >= 1099511627776",
        "at < TIMESTAMP '1970-01-01T00:00:00Z'",
        "key > '7f7f7f7f-7f7f-7f7f-7f7f-7f7f7f7f7f7f'",
        "doc = '[]'",
    ):
        cache = private(["--files", str(folder), "--filter", where, "--columns", "row"], nodes=1)
        cache.wait("Ready")
        mine = client.read(client.command(kind="shard", index=0, total=1, filter=where, columns=["row"]))
        assert connect(cache).table().equals(mine), where


@pytest.mark.parametrize(
    ("lists", "length", "says"),
    [
        ([[1, 2], [3, 4], [5, 6, 7]], 2, "list 2 of these has 3 values"),
        ([None] * 3, (1 << 31) - 1, "do not fit a batch"),
    ],
    ids=["another length", "no room"],
)
def test_lists_that_are_not_as_the_schema_says_fail_the_cache(
    lists: list[list[int] | None], length: int, says: str, folder: Path, caches: Caches
) -> None:
    """Writers of Parquet alone know nothing of the length that ARROW:schema has."""
    table = pa.table({"v": pa.array(lists, pa.list_(pa.int32()))})
    claimed = pa.schema([("v", pa.list_(pa.int32(), length))])
    stored = {b"ARROW:schema": base64.b64encode(claimed.serialize().to_pybytes())}
    path = folder / "f.parquet"
    folder.mkdir()
    with pq.ParquetWriter(path, table.schema, store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(stored)
    done = caches.run("local", "--files", str(folder), "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0")
    assert done.returncode == 3
    assert says in done.stderr
    assert "f.parquet" in done.stderr


@pytest.mark.parametrize(
    ("where", "splits"),
    [("day = DATE '2026-02-02'", 1), ("id < 23", 2), ("day > DATE '2026-02-02' AND id < 33", 1), ("id > 1000", 0)],
)
def test_paths_and_footers_prune(where: str, splits: int, folder: Path, caches: Caches) -> None:
    """Four files of one row group, ids from 10 * day on."""
    folders.by_date(folder)
    done = caches.run("inspect", "--files", str(folder), "--filter", where)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(".parquet") == splits


def test_globs_and_several_addresses(folder: Path, caches: Caches, private: Private, connect: Connect) -> None:
    folders.names_in_byte_order(folder)
    cache = private(
        [
            "--files",
            f"{folder}/part-*.parquet",
            "--files",
            f"{folder}/a.parquet",
            "--files",
            f"{folder}/**/[xz].parquet",
        ]
    )
    cache.wait("Ready")
    files = ["part-10.parquet", "part-9.parquet", "a.parquet", "a-1/x.parquet", "a/z.parquet"]
    check_equal(connect(cache).table(), pa.concat_tables([pq.read_table(folder / f) for f in files]))
    twice = caches.run("inspect", "--files", str(folder), "--files", f"{folder}/a.parquet")
    assert "a.parquet is named twice" in twice.stderr


def test_a_list_names_the_files_in_the_order_of_their_rows(
    folder: Path, caches: Caches, private: Private, connect: Connect
) -> None:
    folders.names_in_byte_order(folder)
    names = ["part-9.parquet", "a/z.parquet", "B.parquet"]
    listed = folder / "train.txt"
    listed.write_text("".join(f"{folder / name}\r\n\n" for name in names))
    cache = private(["--files", f"{listed}?list=1"])
    cache.wait("Ready")
    check_equal(connect(cache).table(), pa.concat_tables([pq.read_table(folder / name) for name in names]))
    for text, says in {
        "https://host/a.parquet?signature=x\n": "line 1",
        f"\n{names[0]}": "line 2",
        " \n": "names no file",
        f"{folder}/a.parquet\n{folder}/a.parquet": "named twice",
        f"{folder}/none.parquet": "none.parquet",
        f"{folder}/a": "a",
    }.items():
        listed.write_text(text)
        done = caches.run("inspect", "--files", f"{listed}?list=1")
        assert done.returncode not in (0, 2), text
        assert says in done.stderr, text
    two = caches.run("inspect", "--files", f"{listed}?list=1", "--files", f"{folder}/a.parquet")
    assert "name the list alone" in two.stderr


def test_folder_names_have_the_types_that_are_named(
    folder: Path, caches: Caches, private: Private, connect: Connect
) -> None:
    for day, code in (("2026-01-31", "7"), ("__HIVE_DEFAULT_PARTITION__", "007")):
        folders.write(folder, f"day={day}/code={code}/n={code}/f.parquet", folders.numbers(0, 1))
    types = ["--partition-types", "day=string", "--partition-types", "n=integer"]
    cache = private(["--files", str(folder), *types, "--filter", "n = 7"])
    cache.wait("Ready")
    got = connect(cache).table()
    assert got["day"].to_pylist() == ["2026-01-31", None]
    assert (got["code"].to_pylist(), got["n"].to_pylist()) == (["7", "007"], [7, 7])
    for given, says in {
        "code=date": "code=7 is no date",
        "hour=date": 'no such name, they name the columns "day", "code", "n"',
        "n=float": "want string, integer or date",
    }.items():
        done = caches.run("inspect", "--files", str(folder), "--partition-types", given)
        assert done.returncode not in (0, 2), given
        assert says in done.stderr, given
    off = caches.run("inspect", "--files", str(folder), "--partitions", "off", "--partition-types", "n=date")
    assert "leave one of them out" in off.stderr


def test_tensors_of_different_shapes_are_lists(folder: Path, private: Private, connect: Connect) -> None:
    values = pa.array([[float(i) for i in range(6)]], pa.list_(pa.float32(), 6))
    for name, shape in (("1", (2, 3)), ("2", (3, 2))):
        tensors = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.float32(), shape), values)
        folders.write(folder, f"{name}.parquet", pa.table({"t": tensors}))
    cache = private(["--files", str(folder)], nodes=1)
    cache.wait("Ready")
    got = connect(cache).table()["t"]
    assert got.type == values.type
    assert got.to_pylist() == values.to_pylist() * 2


def test_folder_names_are_no_columns_where_partitions_are_off(folder: Path, private: Private, connect: Connect) -> None:
    folders.by_day(folder)
    cache = private(["--files", str(folder), "--partitions", "off"])
    cache.wait("Ready")
    assert connect(cache).table().column_names == ["id"]


def test_folder_names_with_leading_zeros_are_texts(folder: Path, private: Private, connect: Connect) -> None:
    for code in ("007", "010", "8"):
        folders.write(folder, f"code={code}/f.parquet", folders.numbers(int(code), 1))
    cache = private(["--files", str(folder)], nodes=1)
    cache.wait("Ready")
    assert connect(cache).table()["code"].to_pylist() == ["007", "010", "8"]


def test_the_same_files_have_the_same_fingerprint(mode: Mode, folder: Path, private: Private, connect: Connect) -> None:
    folders.many_row_groups(folder)

    def fingerprint(nodes: int) -> str:
        cache = private(["--files", str(folder)], mode=mode, nodes=nodes)
        cache.wait("Ready")
        return metadata(connect(cache).command(kind="shard", index=0, total=1))["dataset"]["fingerprint"]

    before = fingerprint(2)
    assert fingerprint(3) == before
    folders.write(folder, "0/f.parquet", folders.numbers(0, 105), row_group_size=10)
    assert fingerprint(2) != before, "a file was overwritten"


def test_a_head_that_lost_its_plan_takes_it_from_the_nodes(folder: Path, private: Private, connect: Connect) -> None:
    folders.many_row_groups(folder)
    cache = private(["--files", str(folder)], mode="cluster", nodes=2)
    cache.wait("Ready")
    before = connect(cache).table()
    folders.write(folder, "9.parquet", folders.numbers(0, 5))
    cache.restart("head")
    cache.wait("Ready")
    assert connect(cache).table().equals(before), "the new file belongs to another version"


def touch(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"{}")


@pytest.mark.parametrize(
    ("adds", "says"),
    [
        ("_delta_log/00000000000000000000.json", "is a Delta table"),
        ("deeper/_delta_log/00000000000000000000.json", "is a Delta table"),
        ("metadata/00001-a.metadata.json", "name its metadata file"),
        (".hoodie/hoodie.properties", "is a Hudi table"),
        ("_temporary/0/task_1/part-0.parquet", "a Spark or Hadoop job has not ended"),
        ("_started_17", "has no _committed_ file"),
    ],
)
def test_folders_of_other_formats_and_unfinished_ones_are_refused(
    adds: str, says: str, folder: Path, caches: Caches
) -> None:
    folders.left_out(folder)
    assert caches.run("inspect", "--files", str(folder)).returncode == 0
    touch(folder / adds)
    done = caches.run("inspect", "--files", str(folder))
    assert done.returncode != 0
    assert says in done.stderr
    assert Path(adds).name in done.stderr


@pytest.mark.parametrize(
    ("marker", "address", "says"),
    [
        ("metadata/00003-x.metadata.json", "data", "is an Iceberg table or a part of one"),
        ("metadata/00003-x.metadata.json", "data/day=1/1.parquet", "is an Iceberg table or a part of one"),
        ("_delta_log/00000000000000000000.json", "day=1/hour=2", "is a Delta table or a part of one"),
        (".hoodie/hoodie.properties", "day=1/*.parquet", "is a Hudi table or a part of one"),
        ("metadata/notes.txt", "data", ""),
        ("metadata/00003-x.metadata.json", "other", ""),
        ("_delta_log/00000000000000000000.json", "other", ""),
    ],
)
def test_a_part_of_a_table_of_another_format_is_refused(
    marker: str, address: str, says: str, folder: Path, caches: Caches
) -> None:
    for place in ("data/day=1", "day=1/hour=2", "day=1", "other"):
        folders.write(folder, f"{place}/1.parquet", folders.numbers(0, 9))
    assert caches.run("inspect", "--files", str(folder / address)).returncode == 0
    touch(folder / marker)
    done = caches.run("inspect", "--files", str(folder / address))
    assert (done.returncode == 0) == (says == "")
    assert says in done.stderr


def test_a_job_that_committed_is_read(folder: Path, caches: Caches) -> None:
    folders.left_out(folder)
    for name in ("_started_17", "_committed_17"):
        touch(folder / name)
    assert caches.run("inspect", "--files", str(folder)).returncode == 0


def test_a_conversion_of_the_hub_that_is_short_is_refused(folder: Path, caches: Caches) -> None:
    folders.write(folder, "default/partial-train/0000.parquet", folders.numbers(0, 9))
    assert "converted only to a limit" in caches.run("inspect", "--files", str(folder)).stderr


def conflicting(folder: Path) -> None:
    """A column of two kinds, one that can't be served, and a good one."""
    wide = pa.array([1, 2], pa.decimal256(50, 0))
    folders.write(folder, "1.parquet", pa.table({"id": [1, 2], "v": [1, 2], "wide": wide}))
    folders.write(folder, "2.parquet", pa.table({"id": [3, 4], "v": ["a", "b"], "wide": wide}))


@pytest.mark.parametrize(
    ("columns", "says"), [("id,v", ["1.parquet", "2.parquet", '"v"']), ("wide", ["decimal256"]), ("no", ["no such"])]
)
def test_columns_that_cannot_be_served_are_named(columns: str, says: list[str], folder: Path, caches: Caches) -> None:
    conflicting(folder)
    done = caches.run("inspect", "--files", str(folder), "--columns", columns)
    assert done.returncode != 0
    assert all(word in done.stderr for word in says), done.stderr


def test_other_columns_of_such_files_are_served(folder: Path, private: Private, connect: Connect) -> None:
    conflicting(folder)
    cache = private(["--files", str(folder), "--columns", "id"])
    cache.wait("Ready")
    assert connect(cache).table()["id"].to_pylist() == [1, 2, 3, 4]


def one_file(name: str, table: pa.Table) -> Callable[[Path], None]:
    return lambda folder: folders.write(folder, name, table)


def mixed_levels(folder: Path) -> None:
    folders.write(folder, "a=1/x.parquet", folders.numbers(0, 3))
    folders.write(folder, "x.parquet", folders.numbers(3, 3))


def truncated(folder: Path) -> None:
    folders.left_out(folder)
    path = folder / "part-1.parquet"
    path.write_bytes(path.read_bytes()[:-20])


def empty_file(folder: Path) -> None:
    folders.left_out(folder)
    (folder / "part-1.parquet").write_bytes(b"")


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda folder: None, "no such file"),
        (lambda folder: folder.mkdir(), "is empty"),
        (one_file("data.parq", folders.numbers(0, 3)), "data.parq"),
        (one_file("_old/data.parquet", folders.numbers(0, 3)), "hidden"),
        (one_file("id=3/data.parquet", folders.numbers(0, 3)), "partitions off"),
        (mixed_levels, "partitions off"),
        (truncated, "part-1.parquet"),
        (empty_file, "part-1.parquet"),
    ],
    ids=[
        "missing",
        "empty folder",
        "other names",
        "hidden",
        "column and folder",
        "mixed levels",
        "truncated",
        "no bytes",
    ],
)
def test_what_is_wrong_with_a_folder_is_said(
    build: Callable[[Path], None], says: str, folder: Path, caches: Caches
) -> None:
    build(folder)
    done = caches.run("inspect", "--files", str(folder))
    assert done.returncode not in (0, 2)
    assert says in done.stderr
    assert len(done.stderr) < 1000


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--metadata", "x"], "--files"),
        (["--snapshot-id", "5"], "snapshots"),
        (["--partitions", "maybe"], "--partitions"),
        (["--files", ""], "empty"),
    ],
    ids=lambda flags: flags[0] if isinstance(flags, list) else "",
)
def test_flags_that_contradict_are_refused(flags: list[str], says: str, folder: Path, caches: Caches) -> None:
    folders.left_out(folder)
    done = caches.run("inspect", "--files", str(folder), *flags)
    assert done.returncode not in (0, 2)
    assert says in done.stderr
