# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Filter and split of a request: the rows that DuckDB and the oracle in order.py select, of one cache for all."""

from __future__ import annotations

import dataclasses
import math
import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest
import selections
from client import Client, metadata, node_of
from lake import Lake, Made
from lake import Selection as Cached
from order import Epoch, MixStep, Mixture, Split
from seeds import SEED, seeds
from selections import Oracle
from server import Cache, Caches, Mode
from test_wire import check_code

Connect = Callable[[Cache], Client]

#: How many random filters are compared; make soak-filters compares 2,000.
FILTERS = int(os.environ.get("SELECTION_FILTERS", "200"))


@pytest.fixture(scope="session")
def chosen(lake: Lake) -> Made:
    """The table with every kind of column."""
    return selections.made(lake)


@pytest.fixture
def client(mode: Mode, chosen: Made, caches: Caches, connect: Connect) -> Client:
    """A client of that table on three nodes."""
    return connect(caches.of(chosen, mode=mode, nodes=3))


@pytest.fixture
def whole(client: Client) -> pa.Table:
    """All rows of the cache, in row order."""
    return client.table()


@pytest.fixture
def oracle(whole: pa.Table) -> Iterator[Oracle]:
    """DuckDB over the same rows."""
    made = Oracle(whole)
    yield made
    made.close()


def same(got: pa.Table, whole: pa.Table, rows: list[int]) -> bool:
    """Whether a table has the given rows of the whole. NaN equals nothing, so columns of floats are left out."""
    names = [name for name in whole.column_names if name not in ("price", "ratio")]
    return got.select(names).equals(whole.select(names).take(pa.array(rows, pa.int64())))


def test_random_filters_keep_what_duckdb_keeps(client: Client, whole: pa.Table, oracle: Oracle) -> None:
    r = random.Random(SEED)
    for _ in range(FILTERS):
        clause = selections.clause(r)
        want = oracle.rows(clause.duck)
        info = client.command(kind="shard", index=0, total=1, filter=clause.ours)
        about = metadata(info)
        assert (about["rows"], about["filtered_rows"], info.total_records) == (len(want),) * 3, clause
        assert about["nodes"][-1][1] == len(want)
        assert same(client.read(info), whole, want), clause


class Selection:
    """A random filter and split: the request's fields, and the rows that it selects."""

    def __init__(self, r: random.Random, oracle: Oracle, rows: int) -> None:
        self.fields: dict[str, Any] = {}
        self.base = list(range(rows))  # the row of each filtered row
        if r.random() < 0.8:
            clause = selections.clause(r, 1)
            self.base, self.fields["filter"] = oracle.rows(clause.duck), clause.ours
        self.filtered = list(range(len(self.base)))  # the filtered row of each selected row
        if r.random() < 0.8 or not self.fields:
            of = r.choice([1, 2, 7, 100, 2**40])
            start, to = sorted(r.randint(0, of) for _ in range(2))
            split = Split(seed=r.getrandbits(64), of=of, start=start, to=to, shuffle=r.random() < 0.8)
            self.filtered, self.fields["split"] = split.rows(len(self.base)), split.field()

    def check(
        self, client: Client, whole: pa.Table, rows: list[int], inexact: int = 0, **request: Any
    ) -> fl.FlightInfo:
        """Asserts that each node streams its part of the given rows of the selection, in order.

        The number of rows that the head announces may differ by `inexact`.
        """
        info = client.command(**request, **self.fields)
        about = metadata(info)
        assert (about["filtered_rows"], about["rows"]) == (len(self.base), len(self.filtered)), self.fields
        assert abs(info.total_records - len(rows)) <= inexact, (self.fields, request)
        tables = {node_of(endpoint): client.stream(endpoint) for endpoint in info.endpoints}
        for node, (lo, hi) in enumerate(about["nodes"]):
            mine = [self.base[f] for f in (self.filtered[row] for row in rows) if lo <= f < hi]
            got = tables.get(node, whole.schema.empty_table())
            assert same(got, whole, mine), f"{self.fields} {request}: node {node} of filtered rows [{lo}, {hi})"
        return info


def _epoch(r: random.Random, rows: int) -> Epoch:
    world, workers = r.randint(1, 5), r.randint(1, 3)
    return Epoch(
        rows=rows, seed=r.getrandbits(64), epoch=r.getrandbits(64), shuffle=r.random() < 0.7,
        clump=r.choice([1, 1, 2, 64, 1000]), window=r.choice([0, 0, 4]),
        global_batch=r.choice([1, 3, 64, 1024, 20_000]),
        tail=r.choice(["drop", "pad", "keep"]), rank=r.randrange(world), world=world,
        worker=r.randrange(workers), workers=workers, start_step=r.choice([0, 0, 1, 5]),
    )  # fmt: skip


def _mixture(r: random.Random, rows: int) -> Mixture:
    """A mixture of two parts, of which part 0 has some rows."""
    batch, world = r.choice([50, 256]), r.randint(1, 4)
    return Mixture(
        parts=((rows, (r.randint(1, 999),)), (r.randint(1, 9999), (r.randint(1, 999),))),
        unit=r.choice(["row", "batch"]),
        length=batch * r.randint(1, 20), seed=r.getrandbits(64), epoch=r.choice([0, 10**6]), clump=r.choice([1, 5]),
        global_batch=batch, tail=r.choice(["drop", "pad", "keep"]), rank=r.randrange(world), world=world,
    )  # fmt: skip


def _inexact(mixture: Mixture, steps: list[MixStep]) -> int:
    """By how many rows total_records of a mixture of two parts may differ from the rows of part 0 in some steps.

    It is exact for short shares. For others it is the number of positions times w/T, rounded down twice, with the
    weight w of the part and the sum T of both weights. A whole block of T draws has w of the part. A range of draws may
    begin and end within a block, and each of these two pieces may have w(T-w)/T draws of the part more or fewer.
    """
    positions = sum(len(step.draws) for step in steps)
    (weight,), (other,) = (weights for _, weights in mixture.parts)
    if positions <= min(2**16, 2**6 * (weight + other)):
        return 0
    if mixture.unit == "batch":  # one range of draws; each decides all positions of a step
        pieces = 2 * math.ceil(positions / len(steps))
    else:  # the positions of each step are a range; if one rank reads all, the ranges are one
        pieces = 2 * (1 if mixture.world == 1 else len(steps))
    return math.ceil(pieces * weight * other / (weight + other)) + 2


@pytest.mark.parametrize("seed", seeds(1, failed=[1373323604]))
def test_random_selections(client: Client, whole: pa.Table, oracle: Oracle, seed: int) -> None:
    r = random.Random(seed)
    for _ in range(FILTERS // 8):
        chosen = Selection(r, oracle, whole.num_rows)
        count = len(chosen.filtered)
        total = r.randint(1, 9)
        index = r.randrange(total)
        rows = list(range(index * count // total, (index + 1) * count // total))
        chosen.check(client, whole, rows, kind="shard", index=index, total=total)
        epoch = _epoch(r, count)
        fields = {k: v for k, v in dataclasses.asdict(epoch).items() if k != "rows"}
        chosen.check(client, whole, epoch.share_rows(), kind="epoch", **fields)
        if count:
            mixture = _mixture(r, count)
            parts = [{"rows": rows, "weights": list(weights)} for rows, weights in mixture.parts]
            fields = {**dataclasses.asdict(mixture), "part": 0, "parts": parts, "phases": []}
            steps = mixture.share()
            rows = [draw.row for step in steps for draw in step.draws if draw.part == 0]
            chosen.check(client, whole, rows, _inexact(mixture, steps), kind="mix", **fields)
            check_take(client, whole, chosen, r)


def check_take(client: Client, whole: pa.Table, chosen: Selection, r: random.Random) -> None:
    """Asserts that each node answers with its rows of the selection, named by their filtered rows."""
    info = client.command(kind="take", **chosen.fields)
    assert info.total_records == len(chosen.filtered)
    for endpoint in info.endpoints:
        lo, hi = metadata(info)["nodes"][node_of(endpoint)]
        mine = [f for f in chosen.filtered if lo <= f < hi]
        if not mine:
            continue
        asked = [r.choice(mine) for _ in range(r.choice([1, 10, 2000]))]
        (got,) = client.take(endpoint, asked)
        assert same(got, whole, [chosen.base[f] for f in asked]), chosen.fields
        refused = check_code("OUT_OF_RANGE", lambda e=endpoint, hi=hi: client.take(e, [hi]))
        assert str(hi) in refused


def test_spellings_of_a_filter_are_one_selection(client: Client) -> None:
    def fingerprint(**fields: Any) -> str:
        return metadata(client.command(kind="shard", index=0, total=1, **fields))["dataset"]["fingerprint"]

    split = Split(seed=1, of=10, start=0, to=9).field()
    plain = fingerprint()
    assert fingerprint(filter=" \n") == plain
    both = fingerprint(filter="small > 3 AND flag")
    assert fingerprint(filter='((3 < small))  and "flag"') == both
    different = [plain, both, fingerprint(filter="small > 4 AND flag"), fingerprint(split=split)]
    different += [
        fingerprint(filter="small > 3 AND flag", split=s)
        for s in (split, {**split, "shuffle": False}, {**split, "to": 8})
    ]
    assert len(set(different)) == len(different)


def test_metadata_of_a_selection(client: Client, whole: pa.Table, oracle: Oracle) -> None:
    count = len(oracle.rows("small > 3"))
    split = {"seed": 1, "of": 100, "from": 0, "to": 90}
    info = client.command(kind="shard", index=0, total=1, filter="3<small", split=split)
    about = metadata(info)
    assert about["selection"] == {"filter": "small > 3", "split": {**split, "shuffle": True}}
    assert (about["rows"], about["filtered_rows"], about["dataset"]["filter"]) == (count * 90 // 100, count, "")
    plain = metadata(client.command(kind="shard", index=0, total=1))
    assert "selection" not in plain
    assert "filtered_rows" not in plain
    assert plain["rows"] == whole.num_rows


@pytest.mark.parametrize("filter", ["n < 0", "FALSE", "name = 'nobody'"])
def test_a_filter_that_selects_nothing(filter: str, client: Client) -> None:
    split = {"seed": 1, "of": 100, "from": 0, "to": 90}
    epoch = {"seed": 1, "epoch": 0, "shuffle": True, "global_batch": 4, "tail": "pad", "rank": 0, "world": 1}
    for fields in [{"filter": filter}, {"filter": filter, "split": split}]:
        for request in [{"kind": "shard", "index": 0, "total": 1}, {"kind": "epoch", **epoch}]:
            info = client.command(**request, **fields)
            assert (info.total_records, info.endpoints, metadata(info)["rows"]) == (0, [], 0)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"filter": "nope = 1"}, 'unknown column "nope"; the columns are n, small'),
        ({"filter": "n ="}, "filter: "),
        ({"filter": "n = 'seven'"}, "seven"),
        ({"filter": 7}, "filter: number does not fit, want a string"),
        ({"split": []}, "split: array does not fit, want an object"),
        ({"split": {"seed": 1, "of": 2, "from": 0}}, "split.to: missing"),
        ({"split": {"seed": 1, "of": 0, "from": 0, "to": 0}}, "split.of = 0: want 1 <= of < 2^62"),
        ({"split": {"seed": 1, "of": 2, "from": 0, "to": 3}}, "split.to = 3"),
        ({"split": {"seed": 1, "of": 2, "from": 2, "to": 1}}, "split.from = 2"),
        ({"split": {"seed": -1, "of": 2, "from": 0, "to": 1}}, "split.seed: -1 does not fit"),
        ({"split": {"seed": 1, "of": 2, "from": 0, "to": 1, "shuffle": 1}}, "split.shuffle: 1 does not fit"),
        ({"split": {"seed": 1, "of": 2, "from": 0, "to": 1, "part": 1}}, '"part" is no field of a split'),
    ],
    ids=str,
)
def test_what_is_no_selection_is_refused(fields: dict[str, Any], says: str, client: Client) -> None:
    assert says in check_code("INVALID_ARGUMENT", lambda: client.command(kind="take", **fields))


def test_a_column_that_is_not_cached(chosen: Made, caches: Caches, connect: Connect) -> None:
    client = connect(caches.of(chosen, Cached(columns=("n", "small"), where="flag")))
    refused = check_code("INVALID_ARGUMENT", lambda: client.command(kind="take", filter="flag"))
    assert 'unknown column "flag"; the columns are n, small' in refused
    got = client.read(client.command(kind="shard", index=0, total=1, filter="small < 0"))
    rows = client.table().to_pylist()
    assert got.to_pylist() == [row for row in rows if row["small"] is not None and row["small"] < 0]


FILTER = {"filter": "price > 0 OR name LIKE 'b%'", "split": {"seed": 5, "of": 10, "from": 0, "to": 9}}
EPOCH = {
    "kind": "epoch",
    "seed": 3,
    "epoch": 1,
    "shuffle": True,
    "global_batch": 64,
    "tail": "keep",
    "rank": 0,
    "world": 1,
}


def sequences(client: Client) -> list[list[int]]:
    """Each node's rows of an epoch of a selection."""
    info = client.command(**EPOCH, **FILTER, columns=["n"])
    return [client.stream(endpoint).column("n").to_pylist() for endpoint in info.endpoints]


@pytest.mark.parametrize("name", ["node-1", "head"])
def test_a_selection_outlives_a_process(
    name: str, chosen: Made, private: Callable[..., Cache], connect: Connect
) -> None:
    cache = private(["--metadata", chosen.metadata], mode="cluster", nodes=2)
    cache.wait("Ready")
    before = sequences(connect(cache))
    old = connect(cache).command(**EPOCH, **FILTER)
    cache.restart(name)
    cache.wait("Ready")
    assert sequences(connect(cache)) == before
    if name == "head":  # nodes take tickets of the head that they have joined last
        check_code("UNAUTHENTICATED", lambda: connect(cache).stream(old.endpoints[0]))


def test_an_index_makes_room_for_another(chosen: Made, caches: Caches, connect: Connect) -> None:
    client = connect(caches.of(chosen, nodes=2, flags=("--filter-memory", "1900")))
    first = client.command(kind="shard", index=0, total=1, filter="small > 3")
    rows = client.read(first)
    other = client.command(kind="shard", index=0, total=1, filter="small > 4")
    assert client.read(other).num_rows == other.total_records
    refused = check_code("FAILED_PRECONDITION", lambda: client.read(first))
    assert "ask the head again" in refused
    again = client.command(kind="shard", index=0, total=1, filter="small > 3")
    assert client.read(again).column("n").equals(rows.column("n"))


def test_a_filter_without_memory_is_refused(chosen: Made, caches: Caches, connect: Connect) -> None:
    client = connect(caches.of(chosen, nodes=2, flags=("--filter-memory", "100")))
    refused = check_code("RESOURCE_EXHAUSTED", lambda: client.command(kind="take", filter="small > 3"))
    assert "needed" in refused
    assert "--filter-memory" in refused
    assert client.table().num_rows == selections.ROWS
