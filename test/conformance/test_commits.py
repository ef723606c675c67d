# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Datasets that are committed to tables of a REST catalog: rows, one snapshot whatever is retried, what is refused."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from canon import difference, rows_of
from catalog_proxy import FAULTS, Fault, Handler, Proxy, killing
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField
from seeds import seeds
from server import Cache, Caches, s3_environment
from stores import BUCKET, minio, rest_catalog
from test_puts import SCHEMA, Writer, refused, rows

from kit.deadline import eventually

PARTS, ROWS = 4, 500


@pytest.fixture(scope="module")
def proxy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """A catalog behind a proxy."""
    jars = request.config.getoption("--rest-catalog")
    if jars is None:
        pytest.skip("no --rest-catalog given: run 'make test-conformance'")
    with rest_catalog(jars, tmp_path_factory.mktemp("commits")) as uri:
        between = Proxy(uri)
        RestCatalog("tests", uri=uri).create_namespace("db")
        yield between
        between.shutdown()


class Lake:
    """A cache with a dataset, and a table for each test."""

    def __init__(self, proxy: Proxy, cache: Cache, name: str) -> None:
        self.proxy, self.cache, self.name = proxy, cache, name
        self.table = f"db.{name}"
        self.catalog = RestCatalog("tests", uri=f"http://{proxy.catalog}")
        self.writer = Writer(cache)
        self.last = ""  # the id of the last put

    def put(
        self, name: str, first: int = 0, keep: str = "memory", sent: Callable[[int], None] = lambda part: None
    ) -> str:
        """Puts a dataset. Calls sent after each part."""
        begun = self.writer.begin(name, PARTS, mode="replace", keep=keep)
        self.last = begun["put"]
        for part in reversed(range(PARTS)):
            self.writer.send(begun, PARTS, part, rows(first + ROWS * part, first + ROWS * (part + 1)))
            sent(part)
        return self.writer.act("put.publish", put=begun["put"])["dataset"]

    def commit(self, dataset: str, writer: Writer | None = None, **fields: Any) -> Any:
        """Commits a dataset."""
        while True:
            made = (writer or self.writer).act("put.commit", dataset=dataset, **{"table": self.table, **fields})
            if made["state"] == "committed":
                return made

    def load(self) -> Table:
        """The table as it is now."""
        return self.catalog.load_table(self.table)

    def ids(self) -> list[int]:
        """The ids of all rows."""
        return sorted(self.load().scan(selected_fields=("id",)).to_arrow()["id"].to_pylist())


@pytest.fixture
def lake(proxy: Proxy, caches: Caches, request: pytest.FixtureRequest) -> Iterator[Lake]:
    """A cache of two data nodes, in processes of their own, whose catalog is behind the proxy."""
    cache = caches.start(["--puts"], mode="cluster", env={"CATALOG_URI": proxy.uri})
    cache.wait("Ready")
    proxy.next, proxy.next_looks, proxy.commits = [], [], 0
    name = "".join(c if c.isalnum() else "_" for c in request.node.name)
    one = Lake(proxy, cache, name)
    yield one
    one.writer.client.close()
    cache.stop(signal.SIGKILL)


@pytest.mark.parametrize("keep", ["memory", "replica"])
def test_rows_are_committed_in_order(lake: Lake, caches: Caches, proxy: Proxy, keep: str) -> None:
    dataset = lake.put("a", keep=keep)
    assert "commit" not in lake.writer.act("put.status", put=lake.last)
    made = lake.commit("a")
    (shown,) = lake.cache.status()["datasets"]
    assert shown["commit"] == {"table": lake.table, "state": "committed", "snapshot": made["snapshot"]}
    assert lake.writer.act("put.status", put=lake.last)["commit"] == shown["commit"]
    assert made["dataset"] == dataset
    assert "existed" not in made
    table = lake.load()
    (snapshot,) = table.snapshots()
    assert snapshot.snapshot_id == made["snapshot"]
    assert snapshot.summary is not None
    assert snapshot.summary["datacache.fingerprint"] == dataset.partition("@")[2]
    assert str(snapshot.summary["datacache.put"]).startswith("put-")
    want = rows(0, PARTS * ROWS)
    assert table.scan().to_arrow().cast(SCHEMA).sort_by("id").equals(want)
    flags = ["--catalog-uri", proxy.uri, "--schema-name", "db", "--table-name", lake.name]
    other = caches.start(flags)
    other.wait("Ready")
    reader = Writer(other)
    served = reader.client.read(reader.client.command(kind="shard", index=0, total=1))
    assert served.cast(SCHEMA).equals(want), "the order of rows in a cache of the snapshot"
    other.stop(signal.SIGKILL)


def test_again_is_the_same_snapshot(lake: Lake) -> None:
    lake.put("a")
    made = lake.commit("a")
    assert lake.commit("a") == {**made, "existed": True}
    lake.put("a")  # the same rows, by another put
    assert lake.commit("a")["snapshot"] == made["snapshot"]
    assert len(lake.load().snapshots()) == 1


def test_append_and_replace(lake: Lake) -> None:
    lake.put("a")
    lake.put("b", 10_000)
    lake.commit("a")
    lake.load().append(rows(50_000, 50_010))
    lake.commit("b")
    a, b = list(range(PARTS * ROWS)), list(range(10_000, 10_000 + PARTS * ROWS))
    assert lake.ids() == [*a, *b, *range(50_000, 50_010)]
    made = lake.commit("b", mode="replace")
    assert lake.ids() == b
    assert lake.commit("b", mode="replace") == {**made, "existed": True}
    lake.load().append(rows(60_000, 60_010))
    assert lake.commit("b", mode="replace")["existed"], "rows that were appended since are left"
    lake.commit("a", mode="replace")
    assert lake.ids() == a
    lake.put("b", 10_000)
    assert "existed" not in lake.commit("b", mode="replace")
    assert lake.ids() == b
    assert len(lake.load().snapshots()) == 7


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("how", ["append", "replace"])
def test_one_snapshot_without_an_answer(lake: Lake, fault: Fault, how: str) -> None:
    lake.put("a")
    lake.catalog.create_table(lake.table, SCHEMA)
    lake.proxy.next = [fault]
    made = lake.commit("a", mode=how)
    assert not lake.proxy.next, "the catalog has got all that is late"
    (snapshot,) = lake.load().snapshots()
    assert snapshot.snapshot_id == made["snapshot"]
    assert lake.ids() == list(range(PARTS * ROWS))


def test_others_commit_meanwhile(lake: Lake) -> None:
    lake.put("a")
    lake.catalog.create_table(lake.table, SCHEMA)

    def before(handler: Handler, body: bytes) -> None:
        lake.load().append(rows(50_000, 50_001))
        handler.answer(*handler.ask(body))

    lake.proxy.next = [before, before]
    lake.commit("a")
    assert lake.proxy.commits == 3
    assert lake.ids() == [*range(PARTS * ROWS), 50_000, 50_000]
    assert len(lake.load().snapshots()) == 3


def test_several_at_once(lake: Lake) -> None:
    names = ["a", "b", "c"]
    for i, name in enumerate(names):
        lake.put(name, 10_000 * i)
    with ThreadPoolExecutor(6) as pool:
        made = list(pool.map(lambda name: lake.commit(name, Writer(lake.cache))["snapshot"], names * 2))
    assert made[:3] == made[3:]
    assert {s.snapshot_id for s in lake.load().snapshots()} == set(made)
    assert len(set(made)) == 3
    assert lake.ids() == [10_000 * i + row for i in range(3) for row in range(PARTS * ROWS)]


def everything(count: int) -> pa.Table:
    """Rows of all types that a table can have, with nulls, empty values, and more bytes than a file has."""
    numbers = range(count)
    some = lambda value: [None if i % 5 == 3 else value(i) for i in numbers]  # noqa: E731
    pair = pa.struct([pa.field("x", pa.int32(), nullable=False), ("names", pa.list_(pa.string()))])
    columns: dict[str, tuple[pa.DataType, Any]] = {
        "bool": (pa.bool_(), some(lambda i: i % 2 == 0)),
        "int": (pa.int32(), some(lambda i: -i)),
        "long": (pa.int64(), some(lambda i: i << 33)),
        "float": (pa.float32(), some(lambda i: i / 3)),
        "double": (pa.float64(), some(lambda i: float("nan") if i % 7 == 0 else -i / 3)),
        "decimal": (pa.decimal128(12, 2), some(lambda i: Decimal(i) / 4)),
        "date": (pa.date32(), some(lambda i: i)),
        "time": (pa.time64("us"), some(lambda i: i)),
        "at": (pa.timestamp("us"), some(lambda i: i)),
        "zoned": (pa.timestamp("us", "UTC"), some(lambda i: i)),
        "text": (pa.string(), some(lambda i: "ü" * (i % 4))),
        "large": (pa.large_string(), some(lambda i: f"{i} " * 400)),
        "binary": (pa.binary(), some(lambda i: bytes(i % 3))),
        "fixed": (pa.binary(4), some(lambda i: i.to_bytes(4, "big"))),
        "tokens": (pa.large_list(pa.int64()), some(lambda i: [i] * (i % 5))),
        "embedding": (pa.list_(pa.float32(), 3), some(lambda i: [i, None, i / 2])),
        "pairs": (pa.list_(pair), some(lambda i: [{"x": i, "names": None}, None, {"x": 1, "names": ["a", None]}])),
        "map": (pa.map_(pa.string(), pa.int32()), some(lambda i: [(str(i), i), ("", None)][: i % 3])),
    }
    return pa.table({name: pa.array(values, dt) for name, (dt, values) in columns.items()})


def test_all_types_in_an_object_store(
    proxy: Proxy, caches: Caches, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    binary = request.config.getoption("--minio")
    if binary is None:
        pytest.skip("no --minio given: run 'make test-conformance'")
    with minio(binary.resolve(), tmp_path) as properties:
        env = {"CATALOG_URI": proxy.uri, **s3_environment(properties)}
        cache = caches.start(["--puts"], mode="cluster", env=env)
        cache.wait("Ready")
        lake, want = Lake(proxy, cache, "everything"), everything(24_000)
        begun = lake.writer.begin("all", 2, want.schema)
        for part in (0, 1):
            lake.writer.send(begun, 2, part, want.slice(20_000 * part, 20_000 * (1 - part) or 4_000))
        lake.writer.act("put.publish", put=begun["put"])
        folder = {"write.data.path": f"s3://{BUCKET}/everything"}
        lake.catalog.create_table(lake.table, want.schema, properties=folder)
        lake.commit("all")
        table = RestCatalog("tests", uri=f"http://{proxy.catalog}", **properties).load_table(lake.table)
        files = sorted(task.file.file_path for task in table.scan().plan_files())
        assert len(files) == 3, "two files of the first part, one of the second"
        assert all(f.startswith(f"s3://{BUCKET}/everything/") for f in files)
        scanned = table.scan().to_arrow().drop_columns(["pairs"])  # pyiceberg reads null lists of structs as empty ones
        assert difference(rows_of(scanned), rows_of(want.drop_columns(["pairs"]))) == ""
        flags = ["--catalog-uri", proxy.uri, "--schema-name", "db", "--table-name", "everything"]
        other = caches.start(flags, env=env)
        other.wait("Ready")
        reader = Writer(other)
        served = reader.client.read(reader.client.command(kind="shard", index=0, total=1))
        assert served["long"].equals(want["long"])
        assert difference(rows_of(served), rows_of(want)) == ""
        for each in (cache, other):
            each.stop(signal.SIGKILL)


class Kill:
    """Kills a process once, at a moment of a put and its commit, and starts it again."""

    MOMENTS = ("part", "look", "commit", "answer")

    def __init__(self, lake: Lake, name: str, moment: str, part: int) -> None:
        self.lake, self.name, self.part, self.struck = lake, name, part if moment == "part" else None, False
        if moment == "look":
            lake.proxy.next_looks = [killing(self.strike, answered=False)]
        elif moment in ("commit", "answer"):
            lake.proxy.next.insert(0, killing(self.strike, answered=moment == "answer"))

    def sent(self, part: int) -> None:
        """Hears that a part was sent."""
        if part == self.part and not self.struck:
            self.strike()

    def strike(self) -> None:
        """Kills the process."""
        self.lake.cache.restart(self.name)
        self.struck = True


@pytest.mark.parametrize("seed", seeds(2))
def test_random_kills(lake: Lake, seed: int) -> None:
    rng = random.Random(seed)
    lake.catalog.create_table(lake.table, SCHEMA)
    want: list[int] = []
    for number in range(6):
        first = 10_000 * number
        want += range(first, first + PARTS * ROWS)
        lake.proxy.next = [rng.choice(FAULTS)] * rng.randrange(2)
        kill = Kill(lake, rng.choice(list(lake.cache.processes)), rng.choice(Kill.MOMENTS), rng.randrange(PARTS))
        dataset = ""

        def commit(first: int = first, kill: Kill = kill) -> Any:
            nonlocal dataset
            try:
                dataset = dataset or lake.put("a", first, sent=kill.sent)
                return lake.commit(dataset, Writer(lake.cache))
            except pa.ArrowException as error:
                print(error)  # pytest shows it if the test fails
                if "are lost" in str(error) or "no dataset" in str(error):  # in memory alone
                    dataset = ""

        made = eventually(f"a commit after {kill.name} was killed", commit)
        assert kill.struck, f"{kill.name} was not killed"
        lake.cache.wait("Ready")
        assert lake.ids() == want, f"{kill.name} was killed"
        assert lake.load().snapshots()[-1].snapshot_id == made["snapshot"]
    assert len(lake.load().snapshots()) == len(want) // (PARTS * ROWS)


def test_what_a_table_can_not_have_is_refused(lake: Lake) -> None:
    lake.put("a")
    refused("FAILED_PRECONDITION", "want namespace and name", lake.commit, "a", table="t")
    refused("INVALID_ARGUMENT", 'want "append" or "replace"', lake.commit, "a", mode="upsert")
    refused("NOT_FOUND", "no dataset", lake.commit, "b")
    lake.catalog.create_table("db.other", pa.schema([("id", pa.int32()), *list(SCHEMA)[1:]]))
    refused(
        "FAILED_PRECONDITION", 'column "id": long in the dataset, int in the table', lake.commit, "a", table="db.other"
    )
    lake.catalog.create_table("db.narrow", pa.schema([("id", pa.int64())]))
    refused(
        "FAILED_PRECONDITION", 'column "text", of type string: the table has no', lake.commit, "a", table="db.narrow"
    )
    fields = [NestedField(1, "id", LongType(), required=True), NestedField(2, "more", LongType(), required=True)]
    lake.catalog.create_table("db.wide", Schema(*fields))
    narrow = pa.table({"id": [1]}, pa.schema([pa.field("id", pa.int64(), nullable=False)]))
    begun = lake.writer.begin("narrow", 1, narrow.schema)
    lake.writer.send(begun, 1, 0, narrow)
    lake.writer.act("put.publish", put=begun["put"])
    refused(
        "FAILED_PRECONDITION", 'column "more", of type long: the table requires', lake.commit, "narrow", table="db.wide"
    )
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "id"))
    lake.catalog.create_table("db.parted", Schema(fields[0]), partition_spec=spec)
    refused("FAILED_PRECONDITION", "partitioned", lake.commit, "narrow", table="db.parted")


def test_types_without_an_equal_are_refused(lake: Lake) -> None:
    table = pa.table({"when": pa.array([1], pa.timestamp("ns"))})
    begun = lake.writer.begin("times", 1, table.schema)
    lake.writer.send(begun, 1, 0, table)
    lake.writer.act("put.publish", put=begun["put"])
    refused("FAILED_PRECONDITION", 'column "when": Iceberg has no type', lake.commit, "times")
    (shown,) = lake.cache.status()["datasets"]
    assert shown["commit"]["state"] == "failed"
    assert "Iceberg has no type" in shown["commit"]["reason"]
    assert lake.writer.act("put.status", put=begun["put"])["commit"] == shown["commit"]


def test_without_a_catalog(caches: Caches) -> None:
    cache = caches.start(["--puts"])
    cache.wait("Ready")
    writer = Writer(cache)
    begun = writer.begin("a", 1)
    writer.send(begun, 1, 0, rows(0, 1))
    writer.act("put.publish", put=begun["put"])
    refused("FAILED_PRECONDITION", "--catalog-uri", writer.act, "put.commit", dataset="a", table="db.t")
    cache.stop(signal.SIGKILL)
