# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Types and files that few writers produce: served exactly, or refused with the column's name, others are served."""

# ruff: noqa: E501
# Values and tables are easier to compare on one line.

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from client import Client
from handwritten import I64, Entry, Manifest, Table, annotate, column, edit_footer, get, put
from lake import Made, Selection
from server import Cache, Caches, Mode
from variants import MISSING, column_of, decode

Connect = Callable[[Cache], Client]
Columns = list[tuple[int, str, pa.Array]]

#: Numbers of types in the union LogicalType of the Parquet format.
VARIANT, GEOMETRY, GEOGRAPHY, NONE_YET = 16, 17, 18, 99

OBJECTS = [
    {"id": 7, "name": "a", "tags": ["x", 1, None], "deep": {"z": 1.5, "a": True}}, {"id": "seven", "other": [1, {"y": 2}]},
    {}, {"name": None}, {"tags": [], "deep": {}}, {"tags": "none", "deep": 5, "id": 2**40}, [1, "a", {"id": 3}], [], "text", "é" * 50,
    5, -3, 2**40, 1.25, True, False, None, MISSING, dt.date(1969, 12, 31), b"\xff", Decimal("-1.25"),
    {"z": 1, "y": {"b": 1, "a": [{"k": "v"}]}, "id": 1, "name": "last"},
]  # fmt: skip

SHAPES: dict[str, Any] = {
    "unshredded": None,
    "long": pa.int64(), "double": pa.float64(), "string": pa.string(), "boolean": pa.bool_(), "date": pa.date32(), "binary": pa.binary(),
    "object": {"id": pa.int64(), "name": pa.string()},
    "all fields": {"id": pa.int64(), "name": pa.string(), "tags": [pa.string()], "deep": {"z": pa.float64(), "none": pa.string()}},
    "list": [pa.int64()], "list of objects": [{"id": pa.int64()}],
}  # fmt: skip

INVALID = b"caf\xe9"


@pytest.fixture
def new(tmp_path: Path) -> Callable[..., Table]:
    """A function that begins a table."""
    names: Iterator[int] = iter(range(99))
    return lambda columns, version=2: Table(tmp_path / f"table-{next(names)}", columns, version=version)


def write(table: Table, name: str, columns: Columns, **options: Any) -> Path:
    """Writes a data file whose columns have field ids."""
    fields = [pa.field(n, a.type, metadata={"PARQUET:field_id": str(i)}) for i, n, a in columns]
    path = table.parquet(name)
    pq.write_table(pa.table([a for _, _, a in columns], schema=pa.schema(fields)), path, **options)
    return path


def ids(n: int = 3) -> tuple[int, str, pa.Array]:
    """The column id."""
    return 1, "id", pa.array(range(n), pa.int64())


ID = column(1, "id", "long")


def refusal(private: Callable[..., Cache], made: Made, *flags: str) -> str:
    """The reason why a cache of the table fails, in its status or as it exits; fails if the cache serves rows."""
    cache = private(["--metadata", made.metadata, *flags])
    try:
        state = cache.wait("Failed", "Ready")
    except AssertionError:
        return cache.log("local")
    assert state["state"] == "Failed", "the cache serves the table"
    return state["reason"]


class TestValuesThatDoNotFit:
    """A value that the column's type cannot hold is an error that names file, row group and column."""

    @pytest.mark.parametrize(
        ("kind", "of"),
        [("timestamp", pa.timestamp("ns")), ("timestamptz", pa.timestamp("ns", "UTC")), ("time", pa.time64("ns"))],
        ids=["timestamp", "timestamptz", "time"],
    )
    def test_nanoseconds(
        self,
        kind: str,
        of: pa.DataType,
        new: Callable[..., Table],
        caches: Caches,
        private: Callable[..., Cache],
        connect: Connect,
    ) -> None:
        table = new([ID, column(2, "at", kind)])
        whole = [0, 1_000, 86_399_999_999_000]
        made = table.add(write(table, "whole.parquet", [ids(), (2, "at", pa.array(whole, of))])).write()
        got = connect(caches.of(made)).table()
        assert got.column("at").cast(pa.int64()).to_pylist() == [v // 1000 for v in whole]
        assert got.schema.field("at").type in (pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.time64("us"))

        table = new([ID, column(2, "at", kind)])
        path = write(table, "cut.parquet", [ids(), (2, "at", pa.array([0, 1_999, None], of))], row_group_size=1)
        made = table.add(path).write()
        reason = refusal(private, made)
        assert all(
            word in reason for word in ("cut.parquet", "row group 1", '"at"', "00:00:00.000001999", "exactly")
        ), reason
        assert connect(caches.of(made, Selection(columns=("id",)))).table().num_rows == 3

    @pytest.mark.parametrize(
        ("nested", "encoding"),
        [(n, e) for n in ("", "list", "struct") for e in ("dictionary", "PLAIN")]
        + [("", "DELTA_BYTE_ARRAY"), ("", "DELTA_LENGTH_BYTE_ARRAY")],
    )
    def test_text_that_is_not_utf8(
        self,
        nested: str,
        encoding: str,
        new: Callable[..., Table],
        caches: Caches,
        private: Callable[..., Cache],
        connect: Connect,
    ) -> None:
        options: dict[str, Any] = {"use_dictionary": encoding == "dictionary"}
        if encoding.startswith("DELTA"):
            options["column_encoding"] = {"word": encoding}
        text = pa.array([b"fine", None, INVALID, b"x" * 100], pa.binary())
        table = new([ID, column(2, "word", _nested_type(nested))])
        made = table.add(
            _text(write(table, "latin1.parquet", [ids(4), (2, "word", _nested(nested, text))], **options), nested)
        ).write()
        reason = refusal(private, made)
        assert all(
            word in reason for word in ("latin1.parquet", "row group 0", '"word"', r"caf\xe9", "not valid UTF-8")
        ), reason
        if not nested and encoding != "dictionary":
            assert "row 2" in reason
        assert connect(caches.of(made, Selection(columns=("id",)))).table().num_rows == 4

        table = new([ID, column(2, "word", _nested_type(nested, "binary"))])
        made = table.add(
            _text(write(table, "latin1.parquet", [ids(4), (2, "word", _nested(nested, text))], **options), nested)
        ).write()
        if nested == "struct":
            return  # strings within structs are checked even if the table declares them binary
        assert connect(caches.of(made)).table().column("word").to_pylist() == _nested(nested, text).to_pylist()

    def test_more_than_2_gib_in_a_few_rows(self, new: Callable[..., Table], caches: Caches, connect: Connect) -> None:
        """The offsets of a batch end at 2 GiB; these rows, which are far larger than the others, take more."""
        size, large, small = 136 << 20, 16, 256

        def value(n: int) -> pa.Array:
            ends = pa.py_buffer(bytes(4) + n.to_bytes(4, "little"))
            return pa.Array.from_buffers(pa.binary(), 1, [None, ends, zeros])

        zeros = pa.py_buffer(bytes(size))
        videos = pa.chunked_array([value(size)] * large + [value(0)] * small)
        table = new([ID, column(2, "video", "binary")])
        path = write(
            table,
            "video.parquet",
            [ids(large + small), (2, "video", videos)],
            use_dictionary=False,
            compression="zstd",
            write_statistics=False,
        )
        made = table.add(path).write()
        got = connect(caches.of(made, Selection(where=f"id >= {large - 1}"), flags=("--memory-limit", "8Gi"))).table()
        assert got.column("id").to_pylist() == list(range(large - 1, large + small))
        assert got.column("video")[0].as_buffer().equals(zeros)
        assert got.column("video").slice(1).to_pylist() == [b""] * small


def _nested_type(nested: str, kind: str = "string") -> Any:
    return {
        "": kind,
        "list": {"type": "list", "element-id": 3, "element": kind, "element-required": False},
        "struct": {"type": "struct", "fields": [column(3, "text", kind)]},
    }[nested]


def _nested(nested: str, text: pa.Array) -> pa.Array:
    if nested == "list":
        kind = pa.list_(pa.field("element", pa.binary(), metadata={"PARQUET:field_id": "3"}))
        return pa.array([[v, None] for v in text.to_pylist()], kind)
    if nested == "struct":
        return pa.StructArray.from_arrays(
            [text], fields=[pa.field("text", pa.binary(), metadata={"PARQUET:field_id": "3"})]
        )
    return text


def _text(path: Path, nested: str) -> Path:
    """Declares a column as text, which pyarrow does only for valid UTF-8."""
    return annotate(path, **{{"": "word", "list": "element", "struct": "text"}[nested]: 1})


class TestColumnsThatCannotBeRead:
    """If one is selected, the error names file, column, type and the columns that can be read."""

    def check(
        self, made: Made, words: list[str], caches: Caches, private: Callable[..., Cache], connect: Connect
    ) -> None:
        """Asserts that column bad is refused, in a filter too, and that column id is served."""
        reason = refusal(private, made)
        assert all(word in reason for word in ("bad.parquet", '"bad"', "can be read are id", *words)), reason
        for flags in (["--columns", "bad"], ["--columns", "id", "--filter", "bad IS NULL"]):
            assert "can be read are id" in caches.run("inspect", "--metadata", made.metadata, *flags).stderr
        only = Selection(columns=("id",), where="id > 0")
        assert connect(caches.of(made, only)).table().to_pydict() == {"id": [1, 2]}
        assert caches.run("inspect", "--metadata", made.metadata, *only.flags()).returncode == 0

    def test_a_logical_type_of_the_future(
        self, new: Callable[..., Table], caches: Caches, private: Callable[..., Cache], connect: Connect
    ) -> None:
        table = new([ID, column(2, "bad", "string")])
        path = write(table, "bad.parquet", [ids(), (2, "bad", pa.array(["a", "b", None]))])
        made = table.add(annotate(path, bad=NONE_YET)).write()
        self.check(made, ["string", "BYTE_ARRAY", "not known"], caches, private, connect)
        cluster = connect(caches.of(made, Selection(columns=("id",)), mode="cluster"))
        assert cluster.table().to_pydict() == {"id": [0, 1, 2]}

    def test_within_a_struct(
        self, new: Callable[..., Table], caches: Caches, private: Callable[..., Cache], connect: Connect
    ) -> None:
        table = new([ID, column(2, "bad", {"type": "struct", "fields": [column(3, "x", "long")]})])
        bad = pa.StructArray.from_arrays(
            [pa.array([1, 2, None])], fields=[pa.field("x", pa.int64(), metadata={"PARQUET:field_id": "3"})]
        )
        path = annotate(write(table, "bad.parquet", [ids(), (2, "bad", bad)]), x=NONE_YET)
        made = table.add(path).write()
        for flags in ([], ["--columns", "bad"]):
            reason = refusal(private, made, *flags)
            assert all(
                word in reason
                for word in ("bad.parquet", '"bad"', "struct", "INT64", "not known", "can be read are id")
            ), reason
        assert connect(caches.of(made, Selection(columns=("id",)))).table().num_rows == 3

    def test_a_type_that_does_not_fit_the_physical_type(
        self, new: Callable[..., Table], caches: Caches, private: Callable[..., Cache], connect: Connect
    ) -> None:
        table = new([ID, column(2, "bad", "string")])
        path = write(table, "bad.parquet", [ids(), (2, "bad", pa.array([1.0, 2.0, None]))])
        self.check(table.add(annotate(path, bad=1)).write(), ["string"], caches, private, connect)

    def test_a_column_that_lies_outside_the_file(
        self, new: Callable[..., Table], caches: Caches, private: Callable[..., Cache], connect: Connect
    ) -> None:
        table = new([ID, column(2, "bad", "string")])
        path = write(table, "bad.parquet", [ids(), (2, "bad", pa.array(["a", "b", None]))], use_dictionary=False)

        def move(fields: list[list[Any]]) -> None:
            chunk = get(get(fields, 4)[1][0], 1)[1][1]
            put(get(chunk, 3), 9, I64, 10**9)

        made = table.add(edit_footer(path, move)).write()
        reason = refusal(private, made)
        assert all(word in reason for word in ("bad.parquet", "row group 0", '"bad"', "1000000000")), reason
        assert connect(caches.of(made, Selection(columns=("id",)))).table().num_rows == 3

    def test_a_wide_decimal(
        self, new: Callable[..., Table], caches: Caches, private: Callable[..., Cache], connect: Connect
    ) -> None:
        table = new([ID, column(2, "bad", "decimal(38, 2)")])
        path = write(table, "bad.parquet", [ids(), (2, "bad", pa.array([1, 2, None], pa.decimal256(60, 2)))])
        self.check(table.add(path).write(), ["decimal(38, 2)", "decimal256"], caches, private, connect)

    def test_two_columns_with_one_field_id(
        self, new: Callable[..., Table], caches: Caches, private: Callable[..., Cache], connect: Connect
    ) -> None:
        table = new([ID, column(2, "bad", "long")])
        path = write(table, "bad.parquet", [ids(), (2, "bad", pa.array([1, 2, 3])), (2, "worse", pa.array([4, 5, 6]))])
        self.check(table.add(path).write(), ["field id 2", '"worse"'], caches, private, connect)

    def test_two_columns_of_one_name_in_a_file(
        self, new: Callable[..., Table], caches: Caches, private: Callable[..., Cache], connect: Connect
    ) -> None:
        table = new([ID, column(2, "bad", "long")])
        path = write(table, "bad.parquet", [ids(), (2, "bad", pa.array([1, 2, 3])), (5, "bad", pa.array([4, 5, 6]))])
        self.check(table.add(path).write(), ["two columns of this name"], caches, private, connect)

    def test_two_columns_of_one_name_in_the_table(
        self, new: Callable[..., Table], caches: Caches, private: Callable[..., Cache], connect: Connect
    ) -> None:
        table = new([ID, column(2, "A", "long"), column(3, "A", "string")])
        made = table.add(
            write(table, "a.parquet", [ids(), (2, "A", pa.array([1, 2, 3])), (3, "B", pa.array(["x", "y", "z"]))])
        ).write()
        for flags in ([], ["--columns", "A"]):
            reason = refusal(private, made, *flags)
            assert all(word in reason for word in ('"A"', "two columns", "2 and 3", "rename")), reason
        for where in ("A = 1", "id = 1"):
            reason = refusal(private, made, "--columns", "id", "--filter", where)
            assert all(word in reason for word in ('"A"', "two columns", "rename")), reason
        assert connect(caches.of(made, Selection(columns=("id",)))).table().num_rows == 3

    def test_names_that_differ_in_case_are_two_columns(
        self, new: Callable[..., Table], caches: Caches, connect: Connect
    ) -> None:
        table = new([ID, column(2, "a", "long"), column(3, "A", "string")])
        made = table.add(
            write(table, "a.parquet", [ids(), (2, "a", pa.array([1, 2, 3])), (3, "A", pa.array(["x", "y", "z"]))])
        ).write()
        for where, want in (("A = 'y'", 1), ("a > 1", 2)):
            assert connect(caches.of(made, Selection(where=where))).table().num_rows == want
            client = connect(caches.of(made))
            info = client.command(v=1, kind="shard", index=0, total=1, filter=where)
            assert client.read(info).num_rows == want


class TestVariantsAndShapes:
    """Types of format version 3 that Arrow has no type for."""

    def test_variants_are_structs_of_their_two_binaries(
        self, new: Callable[..., Table], caches: Caches, connect: Connect
    ) -> None:
        """In every shredded form, in files with and without the logical type."""
        columns = [
            ids(len(OBJECTS)),
            *((2 + i, name, column_of(OBJECTS, of)) for i, (name, of) in enumerate(SHAPES.items())),
        ]
        table = new([ID, *(column(i, name, "variant") for i, name, _ in columns[1:])], 3)
        annotated = write(table, "annotated.parquet", columns, row_group_size=10)
        table.add(annotate(annotated, **dict.fromkeys(SHAPES, VARIANT)), write(table, "plain.parquet", columns))
        made = table.write()
        got = connect(caches.of(made)).table()
        got.validate(full=True)
        binary = pa.binary()
        served = pa.struct([pa.field("metadata", binary, nullable=False), pa.field("value", binary, nullable=False)])
        for name in SHAPES:
            assert got.schema.field(name).type == served
            values = [MISSING if v is None else decode(**v) for v in got.column(name).to_pylist()]
            assert values == 2 * OBJECTS, name
            assert list(map(type, values)) == 2 * list(map(type, OBJECTS)), name
        again = connect(caches.of(made, nodes=1)).table()
        assert again.equals(got), "the same variant is encoded in two ways"

    def test_variants_within_structs_and_lists(
        self, new: Callable[..., Table], caches: Caches, connect: Connect
    ) -> None:
        values = column_of(OBJECTS, SHAPES["object"])
        pair = pa.StructArray.from_arrays(
            [values], fields=[pa.field("v", values.type, metadata={"PARQUET:field_id": "3"})]
        )
        element = pa.field("element", values.type, metadata={"PARQUET:field_id": "5"})
        lists = pa.ListArray.from_arrays(
            pa.array([0, *range(len(OBJECTS))], pa.int32()), values, type=pa.list_(element)
        )
        table = new([
            ID, column(2, "s", {"type": "struct", "fields": [column(3, "v", "variant")]}),
            column(4, "l", {"type": "list", "element-id": 5, "element": "variant", "element-required": False}),
        ], 3)  # fmt: skip
        path = write(table, "nested.parquet", [ids(len(OBJECTS)), (2, "s", pair), (4, "l", lists)])
        got = connect(caches.of(table.add(annotate(path, v=VARIANT, element=VARIANT)).write())).table()
        assert [MISSING if v["v"] is None else decode(**v["v"]) for v in got.column("s").to_pylist()] == OBJECTS
        items = [[MISSING if v is None else decode(**v) for v in row] for row in got.column("l").to_pylist()]
        assert items == [[], *([v] for v in OBJECTS[:-1])]

    @pytest.mark.parametrize("kind", ["geometry", "geometry(EPSG:4326)", "geography", "geography(OGC:CRS84, vincenty)"])
    def test_shapes_are_binary(self, kind: str, new: Callable[..., Table], caches: Caches, connect: Connect) -> None:
        point = bytes.fromhex("0101000000000000000000f03f0000000000000040")
        shapes = pa.array([point, None, b""], pa.binary())
        table = new([ID, column(2, "where", kind)], 3)
        annotated = annotate(
            write(table, "annotated.parquet", [ids(), (2, "where", shapes)]),
            where=GEOMETRY if kind.startswith("geometry") else GEOGRAPHY,
        )
        plain = write(table, "plain.parquet", [ids(), (2, "where", shapes)])
        got = connect(caches.of(table.add(annotated, plain).write())).table()
        assert got.schema.field("where").type == pa.binary()
        assert got.column("where").to_pylist() == 2 * shapes.to_pylist()


class TestRowLineage:
    """Row ids and sequence numbers of format version 3, by the specification's rules of inheritance."""

    WANTED = ("_row_id", "_last_updated_sequence_number")

    def test_inherited_and_stored_values(
        self, mode: Mode, new: Callable[..., Table], caches: Caches, connect: Connect
    ) -> None:
        table = new([ID], 3)
        own = ids(4)
        files = {n: write(table, f"{n}.parquet", [own], row_group_size=3) for n in "abcdef"}
        stored = [
            (2147483540, "_row_id", pa.array([None, 500, None, 7], pa.int64())),
            (2147483539, "_last_updated_sequence_number", pa.array([3, None, None, 2], pa.int64())),
        ]
        files["b"] = write(table, "b.parquet", [own, *stored], row_group_size=3)
        table.manifests += [
            Manifest([Entry(files["a"]), Entry(files["f"], status=2), Entry(files["b"])], first_row_id=100, sequence=5),
            Manifest([Entry(files["c"], first_row_id=40), Entry(files["d"], status=0, sequence=4, file_sequence=4)], first_row_id=200, sequence=6),
            Manifest([Entry(files["e"])], sequence=7),
        ]  # fmt: skip
        made = table.write()
        got = connect(caches.of(made, Selection(columns=self.WANTED), mode=mode)).table()
        assert got.schema == pa.schema([(n, pa.int64()) for n in self.WANTED])
        rows = {tuple(r.values()) for r in got.to_pylist()}
        assert got.num_rows == 20
        assert rows == {
            *((100 + i, 5) for i in range(4)), (104, 3), (500, 5), (106, 5), (7, 2),
            *((40 + i, 6) for i in range(4)), *((200 + i, 4) for i in range(4)), (None, None),
        }  # fmt: skip
        for where, count in {
            "_row_id = 106 OR _row_id = 7": 2,
            "_last_updated_sequence_number < 4": 2,
            "_row_id IS NULL": 4,
        }.items():
            assert connect(caches.of(made, Selection(where=where), mode=mode)).table().column_names == ["id"]
            assert connect(caches.of(made, Selection(where=where), mode=mode)).table().num_rows == count
        client = connect(caches.of(made, Selection(columns=self.WANTED), mode=mode))
        assert client.read(client.command(v=1, kind="shard", index=0, total=1, filter="_row_id >= 200")).num_rows == 5

    def test_needs_format_version_3(self, new: Callable[..., Table], private: Callable[..., Cache]) -> None:
        table = new([ID])
        made = table.add(write(table, "a.parquet", [ids()])).write()
        assert all(
            word in refusal(private, made, "--columns", "_row_id") for word in ('"_row_id"', "version 3", "version 2")
        )

    def test_a_column_of_that_name(self, new: Callable[..., Table], caches: Caches, connect: Connect) -> None:
        table = new([ID, column(2, "_row_id", "string")], 3)
        made = table.add(write(table, "a.parquet", [ids(), (2, "_row_id", pa.array(["a", "b", "c"]))])).write()
        assert connect(caches.of(made, Selection(columns=("_row_id",)))).table().to_pydict() == {
            "_row_id": ["a", "b", "c"]
        }
