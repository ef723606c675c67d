# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Datasets that clients put, by pyarrow alone: parts, receipts, publishing, reading, what is refused."""

from __future__ import annotations

import base64
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import golden
import pyarrow as pa
import pyarrow.flight as fl
import pytest
from client import Client, code_of
from lake import Made
from server import Cache, Caches, Mode

from kit.deadline import eventually

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("text", pa.string()),
        ("tokens", pa.list_(pa.int32())),
        ("at", pa.timestamp("us", "UTC")),
        ("pair", pa.struct([("a", pa.float32()), ("b", pa.large_string())])),
    ]
)


def rows(lo: int, hi: int) -> pa.Table:
    """Rows [lo, hi) of a sequence."""
    return pa.table(
        {
            "id": list(range(lo, hi)),
            "text": [None if i % 7 == 0 else f"row {i} ü" for i in range(lo, hi)],
            "tokens": [None if i % 11 == 0 else [i] * (i % 5) for i in range(lo, hi)],
            "at": list(range(lo, hi)),
            "pair": [None if i % 3 == 0 else {"a": i / 2, "b": str(i)} for i in range(lo, hi)],
        },
        SCHEMA,
    )


class Writer:
    """Puts by the actions and streams of the wire contract."""

    def __init__(self, cache: Cache) -> None:
        self.client = Client(cache.endpoint)

    def act(self, action: str, **fields: Any) -> Any:
        """Calls an action of the head."""
        (result,) = self.client.head.do_action(fl.Action(action, json.dumps({"v": 1, **fields}).encode()))
        return json.loads(result.body.to_pybytes())

    def begin(self, name: str, parts: int, schema: pa.Schema = SCHEMA, **fields: Any) -> Any:
        """Begins a put."""
        text = base64.b64encode(schema.serialize().to_pybytes()).decode()
        return self.act("put.begin", name=name, parts=parts, schema=text, **fields)

    def send(self, begun: Any, parts: int, part: int, table: pa.Table, chunk: int = 1000, attempt: int = 1) -> Any:
        """Sends one part and returns its result."""
        command = {"v": 1, "kind": "put", "ticket": begun["ticket"], "part": part, "attempt": attempt}
        node = fl.connect(begun["nodes"][part * len(begun["nodes"]) // parts])
        with node:
            writer, results = node.do_put(fl.FlightDescriptor.for_command(json.dumps(command).encode()), table.schema)
            with writer:
                writer.write_table(table, max_chunksize=chunk)
                writer.write_metadata(json.dumps({"rows": table.num_rows}).encode())
                writer.done_writing()
                return json.loads(results.read().to_pybytes())

    def read(self, dataset: str, **fields: Any) -> pa.Table:
        """The rows of a dataset."""
        return self.client.read(self.client.command(kind="shard", index=0, total=1, dataset=dataset, **fields))


@pytest.fixture
def cache(mode: Mode, caches: Caches) -> Iterator[Cache]:
    """A cache without a table, of two data nodes, that takes puts."""
    one = caches.start(["--puts"], mode=mode)
    one.wait("Ready")
    yield one
    one.stop(signal.SIGKILL)


@pytest.fixture
def writer(cache: Cache) -> Iterator[Writer]:
    """A writer to it."""
    own = Writer(cache)
    yield own
    own.client.close()


def refused(code: str, says: str, call: Any, *args: Any, **fields: Any) -> None:
    """Asserts that a call fails with a code and a message."""
    with pytest.raises(pa.ArrowException) as error:
        call(*args, **fields)
    assert code_of(error.value) == code, error.value
    assert says in str(error.value)


def test_the_status_of_a_put_comes_in_pages(writer: Writer) -> None:
    cases = [case for case in golden.load("wire_puts.json") if not case["lost"]]
    begun = writer.begin("a", cases[0]["parts"])
    for part in cases[0]["staged"]:
        writer.send(begun, cases[0]["parts"], part, rows(part, part + 1))
    for case in cases:
        status = writer.act("put.status", put=begun["put"], **case["request"])
        got = {"parts": [p["part"] for p in status["parts"]], "lost": status["lost"]}
        if "next" in status:
            got["next"] = status["next"]
        assert got == case["want"], case


def test_a_dataset_is_put_and_read(writer: Writer) -> None:
    begun = writer.begin("a", 4)
    sent = [writer.send(begun, 4, p, rows(1000 * p, 1000 * p + 1000), [1000, 10, 333, 1][p]) for p in (3, 1, 0, 2)]
    refused("NOT_FOUND", "no dataset", writer.read, "a")  # nothing of it may be visible before it is published
    status = writer.act("put.status", put=begun["put"])
    assert [p["part"] for p in status["parts"]] == [0, 1, 2, 3]
    assert set(status) == {"parts", "lost", "staged", "nodes", "ticket"}
    assert status["lost"] == []
    published = writer.act("put.publish", put=begun["put"], receipts=[s["receipt"] for s in sent])
    assert published["rows"] == 4000
    assert published == writer.act("put.publish", put=begun["put"], receipts=[s["receipt"] for s in sent])
    assert writer.read("a").equals(rows(0, 4000))
    assert writer.read(published["dataset"], columns=["id"]).equals(rows(0, 4000).select(["id"]))
    assert writer.read("a", filter="id >= 3990 AND text IS NOT NULL").num_rows == 8
    (listed,) = writer.client.head.list_flights()
    about = json.loads(listed.app_metadata)
    assert (listed.total_records, about["dataset"]["name"]) == (4000, "a")
    assert writer.client.read(writer.client.head.get_flight_info(listed.descriptor)).equals(rows(0, 4000))


def test_only_rows_and_parts_matter(writer: Writer) -> None:
    prints = set()
    for name, chunk in (("a", 1000), ("b", 7)):
        begun = writer.begin(name, 2)
        for part in (0, 1):
            writer.send(begun, 2, part, rows(5 * part, 5 * part + 5), chunk)
            writer.send(begun, 2, part, rows(1500 * part, 1500 * part + 1500), chunk, attempt=2)
        published = writer.act("put.publish", put=begun["put"], receipts=None)
        assert published["rows"] == 3000, "of two attempts the last one counts"
        prints.add(published["dataset"].partition("@")[2])
    assert len(prints) == 1


def test_the_receipt_names_the_attempt(writer: Writer) -> None:
    begun = writer.begin("a", 1)
    first = writer.send(begun, 1, 0, rows(0, 10))
    writer.send(begun, 1, 0, rows(0, 20), attempt=2)
    writer.act("put.publish", put=begun["put"], receipts=[first["receipt"]])
    assert writer.read("a").equals(rows(0, 10))


def test_replaced_while_it_is_read(writer: Writer) -> None:
    def put(table: pa.Table, mode: str) -> str:
        begun = writer.begin("a", 1, mode=mode)
        writer.send(begun, 1, 0, table)
        return writer.act("put.publish", put=begun["put"])["dataset"]

    old = put(rows(0, 200_000), "create")
    info = writer.client.command(kind="shard", index=0, total=1, dataset="a")
    reader = writer.client.node(info.endpoints[0]).do_get(info.endpoints[0].ticket)
    first = reader.read_chunk().data
    refused("ALREADY_EXISTS", 'mode "replace"', writer.begin, "a", 1)
    new = put(rows(7, 9), "replace")
    assert old != new
    rest = pa.Table.from_batches([first, *[chunk.data for chunk in reader]])
    assert rest.equals(rows(0, 200_000))
    assert writer.read("a").equals(rows(7, 9))
    assert writer.read(old).num_rows == 200_000, "its readers go on for a while"
    writer.act("put.drop", dataset="a")
    refused("NOT_FOUND", "no dataset", writer.read, old)


def test_a_plain_do_put_at_the_head(writer: Writer) -> None:
    for table in (rows(0, 1000), rows(0, 10)):  # the second one replaces the first
        stream, results = writer.client.head.do_put(fl.FlightDescriptor.for_path("notebook"), table.schema)
        with stream:
            stream.write_table(table, max_chunksize=100)
            stream.done_writing()
            said = json.loads(results.read().to_pybytes())
        assert said["rows"] == table.num_rows
        assert writer.read("notebook").equals(table)


def test_what_is_refused(writer: Writer) -> None:
    begun = writer.begin("a", 2)
    good = rows(0, 10)
    wrong = good.set_column(0, "id", pa.array([str(i) for i in range(10)]))
    refused("INVALID_ARGUMENT", 'column "id" is utf8', writer.send, begun, 2, 0, wrong)
    nulls = good.set_column(0, pa.field("id", pa.int64()), pa.array([None] * 10, pa.int64()))
    refused("INVALID_ARGUMENT", "is required", writer.send, begun, 2, 0, nulls)
    refused("FAILED_PRECONDITION", "data node 0", writer.send, {**begun, "nodes": begun["nodes"][::-1]}, 2, 0, good)
    refused("UNAUTHENTICATED", "ticket", writer.send, {**begun, "ticket": "x" + begun["ticket"]}, 2, 0, good)
    for fields, why in (
        ({"name": "a b", "parts": 1}, "name"),
        ({"name": "b", "parts": 0}, "parts"),
        ({"name": "b", "parts": 1, "mode": "x"}, "mode"),
        ({"name": "b", "parts": 1, "keep": "x"}, "keep"),
        ({"name": "b", "parts": 1, "other": 1}, "other"),
        ({"name": "b", "parts": 1, "schema": pa.schema([("u", pa.string_view())])}, "u"),
        ({"name": "b", "parts": 1, "schema": pa.schema([("d", pa.dictionary(pa.int8(), pa.string()))])}, "cast"),
    ):
        refused("INVALID_ARGUMENT", why, writer.begin, **fields)
    refused("NOT_FOUND", "no put", writer.act, "put.publish", put="put-0")
    refused("INVALID_ARGUMENT", "dataset", writer.client.path, 0, 1)
    writer.act("put.abort", put=begun["put"])
    refused("NOT_FOUND", "no put", writer.act, "put.status", put=begun["put"])


def test_a_broken_stream_leaves_nothing(writer: Writer, cache: Cache) -> None:
    begun = writer.begin("a", 1)
    command = {"v": 1, "kind": "put", "ticket": begun["ticket"], "part": 0, "attempt": 1}
    node = fl.connect(begun["nodes"][0])
    stream, results = node.do_put(fl.FlightDescriptor.for_command(json.dumps(command).encode()), SCHEMA)
    stream.write_table(rows(0, 1000), max_chunksize=100)
    stream.done_writing()  # as pyarrow does when an exception leaves the writer's with block
    assert results.read() is None
    with pytest.raises(pa.ArrowInvalid, match="without their number"):
        stream.close()
    node.close()
    assert writer.act("put.status", put=begun["put"])["parts"] == []
    assert "datasets" not in cache.status()


def test_without_the_flag_puts_are_denied(mode: Mode, caches: Caches, table: Callable[[str], Made]) -> None:
    own = Writer(caches.of(table("plain"), mode=mode))
    refused("PERMISSION_DENIED", "--puts", own.begin, "a", 1)
    refused("PERMISSION_DENIED", "--puts", own.act, "put.drop", dataset="a")
    own.client.close()


def test_beside_a_table(mode: Mode, caches: Caches, table: Callable[[str], Made]) -> None:
    made = table("plain")
    cache = caches.start(["--metadata", made.metadata, "--puts"], mode=mode)
    try:
        cache.wait("Ready")
        own = Writer(cache)
        before = own.client.read(own.client.path(0, 1))
        begun = own.begin("a", 1)
        own.send(begun, 1, 0, rows(0, 10))
        own.act("put.publish", put=begun["put"])
        assert own.read("a").equals(rows(0, 10))
        assert own.client.read(own.client.path(0, 1)).equals(before)
        assert len(list(own.client.head.list_flights())) == 2
        own.client.close()
    finally:
        cache.stop(signal.SIGKILL)


def restarted(writer: Writer, cache: Cache, *names: str) -> None:
    """Kills processes, and waits until the data nodes have told the head what they have."""
    cache.restart(*names)
    cache.wait("Ready")

    def known() -> bool:
        try:
            writer.act("put.drop", dataset="none")
        except pa.ArrowException as error:
            # Until the data nodes have joined again, the head answers UNAVAILABLE.
            return code_of(error) == "NOT_FOUND"
        return False

    eventually(f"the data nodes after {names} were killed", known)


@pytest.fixture
def disk(caches: Caches, tmp_path: Path) -> Iterator[tuple[Cache, Path]]:
    """A cache as separate processes, whose data nodes have folders, and those."""
    one = caches.start(["--puts"], mode="cluster", env={"SPILL_DIR": str(tmp_path)})
    one.wait("Ready")
    yield one, tmp_path
    one.stop(signal.SIGKILL)


def test_on_disk_rows_survive_every_process(disk: tuple[Cache, Path]) -> None:
    cache, folder = disk
    writer = Writer(cache)
    begun = writer.begin("a", 4, keep="disk")
    sent = [writer.send(begun, 4, part, rows(1000 * part, 1000 * part + 1000)) for part in (0, 2)]
    writer.send(begun, 4, 2, rows(0, 7), attempt=2)
    restarted(writer, cache, "node-0", "node-1")
    status = writer.act("put.status", put=begun["put"])
    assert (status["lost"], [p["part"] for p in status["parts"]]) == ([], [0, 2])
    sent += [writer.send(status, 4, part, rows(1000 * part, 1000 * part + 1000)) for part in (1, 3)]
    published = writer.act("put.publish", put=begun["put"], receipts=[s["receipt"] for s in sent])
    for names in (["node-1"], ["head"], ["node-0", "head", "node-1"]):
        restarted(writer, cache, *names)
        assert writer.read(published["dataset"]).equals(rows(0, 4000)), names
    assert sorted(path.name for path in folder.rglob("*.rows")) == ["0.rows", "0.rows", "1.rows", "2.rows"]
    again = writer.begin("a", 4, mode="replace", keep="memory")
    for part in range(4):
        writer.send(again, 4, part, rows(1000 * part, 1000 * part + 1000))
    assert writer.act("put.publish", put=again["put"], receipts=None) == published, "the same rows, as in files"
    writer.act("put.drop", dataset="a")
    assert not [path for path in folder.rglob("*") if path.is_file()], "nothing is left of a dataset that was dropped"


def test_damaged_files_are_lost_rows(disk: tuple[Cache, Path]) -> None:
    cache, folder = disk
    writer = Writer(cache)
    begun = writer.begin("a", 4)  # on disk, since there is one
    for part in range(4):
        writer.send(begun, 4, part, rows(1000 * part, 1000 * part + 1000))
    writer.act("put.publish", put=begun["put"], receipts=None)
    chosen = sorted(folder.rglob("0/*.rows"))[-1]
    with chosen.open("r+b") as file:
        file.seek(-3000, 2)
        byte = file.read(1)[0]
        file.seek(-3000, 2)
        file.write(bytes([byte ^ 16]))
    restarted(writer, cache, "node-0")
    refused("FAILED_PRECONDITION", "of dataset a are lost: put it again", writer.read, "a")


def test_no_disk(writer: Writer) -> None:
    refused("FAILED_PRECONDITION", "--spill-dir", writer.begin, "a", 1, keep="disk")
