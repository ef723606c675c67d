# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Epochs and reads by index: the rows of every rank, step and worker, compared with the oracle in order.py."""

from __future__ import annotations

import dataclasses
import json
import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import golden as files
import pyarrow as pa
import pytest
from client import Client, command_descriptor, metadata, node_of
from lake import Made
from order import Epoch, Permutation
from seeds import SEED
from server import Cache, Caches, Mode
from test_wire import check_code, exchange

Table = Callable[[str], Made]
Connect = Callable[[Cache], Client]


class TestOracle:
    """The oracle against the golden vectors, and against the properties of its definition."""

    @pytest.fixture(scope="class")
    def vectors(self, golden: Path) -> dict[str, Any]:
        return json.loads((golden / "order_vectors.json").read_text())

    def test_permutations(self, vectors: dict[str, Any]) -> None:
        for case in vectors["permutations"]:
            p = Permutation(case["n"], case["seed"], case["epoch"])
            assert [p.at(x) for x in case["x"]] == case["y"], case
            assert [p.inverse(y) for y in case["y"]] == case["x"], case

    def test_lanes(self, golden: Path) -> None:
        vectors = json.loads((golden / "lanes_vectors.json").read_text())
        for case in vectors["epochs"]:
            fields = {k: case[k] for k in ("seed", "epoch", "shuffle", "clump", "global_batch", "tail", "world")}
            for rank, want in enumerate(case["ranks"]):
                epoch = Epoch(rows=case["n"], rank=rank, order=2, **fields)
                assert [list(step) for step in epoch.share()] == want, case
                assert sorted(epoch.sequence()) == list(range(case["n"]))

    def test_windows(self) -> None:
        for case in files.load("window_vectors.json"):
            fields = {k: v for k, v in case.items() if k != "ranks"}
            epochs = [Epoch(rank=rank, **fields) for rank in range(case["world"])]
            assert [[list(step) for step in epoch.share()] for epoch in epochs] == case["ranks"], fields
            sequence = list(epochs[0].sequence())
            assert sorted(sequence) == list(range(case["rows"]))
            if case["order"] == 1:
                assert [epochs[0].row(position) for position in range(case["rows"])] == sequence

    def test_epochs(self, vectors: dict[str, Any]) -> None:
        for case in vectors["epochs"]:
            fields = {k: case[k] for k in ("seed", "epoch", "shuffle", "clump", "global_batch", "tail", "world")}
            for rank, want in enumerate(case["ranks"]):
                epoch = Epoch(rows=case["n"], rank=rank, **fields)
                assert [list(step) for step in epoch.share()] == want, case

    @pytest.mark.parametrize("n", [1, 2, 3, 9, 1000, 4095, 4096, 4097])
    def test_a_permutation_is_a_bijection(self, n: int) -> None:
        p = Permutation(n, 5, 6)
        images = [p.at(x) for x in range(n)]
        assert p.all() == images
        assert sorted(images) == list(range(n))
        assert [p.inverse(y) for y in images] == list(range(n))


def stream(client: Client, epoch: Epoch, columns: list[str] | None = None) -> tuple[list[list[int]], list[pa.Table]]:
    """The cache's answer and streams for an epoch: node ranges, and the table of each node (empty if it has none)."""
    fields = {k: v for k, v in dataclasses.asdict(epoch).items() if k != "rows"}
    optional: dict[str, Any] = {"columns": columns} if columns else {}
    info = client.command(kind="epoch", **fields, **optional)
    assert info.total_records == len(epoch.share_rows())
    bounds = metadata(info)["nodes"]
    tables = [info.schema.empty_table() for _ in bounds]
    for endpoint in info.endpoints:
        tables[node_of(endpoint)] = client.stream(endpoint)
        assert tables[node_of(endpoint)].num_rows, "an endpoint without rows"
    return bounds, tables


def check(client: Client, whole: pa.Table, epoch: Epoch) -> None:
    """Asserts that each node's stream is its part of the oracle's sequence, in order."""
    rows = epoch.share_rows()
    bounds, tables = stream(client, epoch)
    for (lo, hi), got in zip(bounds, tables, strict=True):
        mine = [row for row in rows if lo <= row < hi]
        assert got.equals(whole.take(pa.array(mine, pa.int64()))), f"{epoch}: node of rows [{lo}, {hi})"


EPOCHS = [
    Epoch(rows=0, seed=7, epoch=2, global_batch=64),
    Epoch(rows=0, seed=7, epoch=2, global_batch=64, rank=2, world=3),
    Epoch(rows=0, seed=2**64 - 1, epoch=2**64 - 1, global_batch=1000, tail="drop"),
    Epoch(rows=0, seed=1, global_batch=999, tail="pad", rank=4, world=5),
    Epoch(rows=0, seed=1, global_batch=1, clump=64, start_step=5000),
    Epoch(rows=0, seed=3, clump=7, global_batch=100, workers=3, worker=1, rank=1, world=2),
    Epoch(rows=0, seed=3, clump=10**9, global_batch=100),
    Epoch(rows=0, shuffle=False, global_batch=128, rank=1, world=4),
    Epoch(rows=0, shuffle=False, global_batch=10**6, tail="pad"),
    Epoch(rows=0, seed=9, global_batch=10**6, tail="drop"),
    Epoch(rows=0, seed=9, global_batch=4, rank=7, world=8, tail="keep"),
    Epoch(rows=0, seed=9, global_batch=50, start_step=10**9),
    Epoch(rows=0, seed=9, clump=64, window=20, global_batch=50, rank=1, world=2),
    Epoch(rows=0, seed=9, clump=3, window=5, global_batch=64, rank=1, world=2, order=2),
    Epoch(rows=0, seed=7, epoch=2, global_batch=64, rank=2, world=3, order=2),
    Epoch(rows=0, seed=7, clump=3, global_batch=999, tail="pad", rank=39, world=40, order=2),
    Epoch(rows=0, seed=8, global_batch=640, tail="drop", rank=5, world=100, worker=1, workers=2, order=2),
    Epoch(rows=0, seed=8, global_batch=20_000, rank=1, world=2, order=2),
]


@pytest.fixture
def plain(mode: Mode, table: Table, caches: Caches, connect: Connect) -> Client:
    """A client of the plain table on three nodes."""
    return connect(caches.of(table("plain"), mode=mode, nodes=3))


class TestEpochs:
    """The streams of data nodes, compared with the oracle."""

    @pytest.mark.parametrize("epoch", EPOCHS, ids=repr)
    def test_each_node_streams_its_share_in_sequence_order(self, epoch: Epoch, plain: Client) -> None:
        whole = plain.table()
        check(plain, whole, dataclasses.replace(epoch, rows=whole.num_rows))

    @pytest.mark.parametrize("name", ["nine_split", "types", "wide_values", "many_files", "empty"])
    def test_other_tables(self, name: str, mode: Mode, table: Table, caches: Caches, connect: Connect) -> None:
        client = connect(caches.of(table(name), mode=mode))
        whole = client.table()
        for tail in ("drop", "pad", "keep"):
            check(
                client, whole, Epoch(rows=whole.num_rows, seed=3, epoch=1, global_batch=8, tail=tail, rank=1, world=3)
            )

    def test_random_epochs(self, plain: Client) -> None:
        whole, r = plain.table(), random.Random(SEED)
        for _ in range(25):
            world, workers = r.randint(1, 9), r.randint(1, 4)
            epoch = Epoch(
                rows=whole.num_rows, seed=r.getrandbits(64), epoch=r.getrandbits(64), shuffle=r.random() < 0.8,
                clump=r.choice([1, 2, 64, 1000, 20_000]), window=r.choice([0, 0, 1, 9, 10**9]),
                global_batch=r.choice([1, 3, 64, 1024, 9_999, 20_000]),
                tail=r.choice(["drop", "pad", "keep"]), rank=r.randrange(world), world=world,
                worker=r.randrange(workers), workers=workers, start_step=r.choice([0, 0, 1, 5]),
            )  # fmt: skip
            check(plain, whole, epoch)
            if epoch.shuffle and epoch.global_batch >= 64:
                check(plain, whole, dataclasses.replace(epoch, order=2))

    @pytest.mark.parametrize("world", [1, 2, 3, 8])
    def test_all_ranks_together_see_every_row_once(self, world: int, plain: Client) -> None:
        epoch = Epoch(rows=10_001, seed=5, epoch=4, global_batch=1000, tail="keep")
        seen: Counter[int] = Counter()
        for rank in range(world):
            for part in stream(plain, epoch.of(rank, world), ["id"])[1]:
                seen.update(part.column("id").to_pylist())
        assert seen == Counter(range(10_001))

    def test_epochs_and_seeds_differ_and_the_same_one_does_not(self, plain: Client) -> None:
        first = Epoch(rows=10_001, seed=5, epoch=4, global_batch=10_001)
        same, other_epoch, other_seed = (
            [part.column("id").to_pylist() for part in stream(plain, e, ["id"])[1]]
            for e in (first, dataclasses.replace(first, epoch=5), dataclasses.replace(first, seed=6))
        )
        assert same == [part.column("id").to_pylist() for part in stream(plain, first, ["id"])[1]]
        assert same != other_epoch
        assert same != other_seed

    @pytest.mark.parametrize("shuffle", [False, True])
    def test_batches_are_as_long_as_the_client_says(self, shuffle: bool, plain: Client) -> None:
        info = plain.command(
            kind="epoch", seed=1, epoch=0, shuffle=shuffle, global_batch=10, tail="keep", rank=0, world=1
        )
        for endpoint in info.endpoints:
            schema, usual = plain.batches(endpoint)
            whole = pa.Table.from_batches(usual, schema)
            for asked, length in [(1, 1 << 16), (100_000, 100_000), (1 << 30, 4 << 20)]:
                _, got = plain.batches(endpoint, [(b"datacache-batch-bytes", str(asked).encode())])
                assert pa.Table.from_batches(got, schema).equals(whole)
                assert len(got) >= whole.nbytes // (1.25 * length)
                # The first batch may end with a step that began on another node; the last one ends with the rows.
                assert all(0.75 * length < batch.nbytes < 1.25 * length for batch in got[1:-1])

    @pytest.mark.parametrize("value", [b"0", b"-5", b"4MiB", b"1e6", b""])
    def test_a_length_that_is_no_number_is_refused(self, value: bytes, plain: Client) -> None:
        info = plain.command(kind="epoch", seed=1, epoch=0, shuffle=True, global_batch=10, tail="keep", rank=0, world=1)
        headers = [(b"datacache-batch-bytes", value)]
        refused = check_code("INVALID_ARGUMENT", lambda: plain.batches(info.endpoints[0], headers))
        assert "datacache-batch-bytes" in refused

    def test_defaults_of_an_epoch(self, plain: Client) -> None:
        short = plain.command(
            kind="epoch", seed=1, epoch=0, shuffle=True, global_batch=100, tail="keep", rank=0, world=1
        )
        fields = {k: v for k, v in dataclasses.asdict(Epoch(rows=0, seed=1, global_batch=100)).items() if k != "rows"}
        full = plain.command(kind="epoch", **fields)
        assert plain.read(short).equals(plain.read(full))


class TestMixtures:
    """The rows that a cache contributes to a mixture, compared with the oracle."""

    def test_random_mixtures(self, plain: Client) -> None:
        whole, r = plain.table(), random.Random(SEED)
        for _ in range(12):
            world, batch = r.randint(1, 4), r.choice([50, 256])
            parts = [{"rows": whole.num_rows, "weights": [r.randint(900, 3000), 7000]}]
            parts += [
                {"rows": r.randint(1, 9999), "weights": [r.randint(0, 999), 1000]} for _ in range(r.randint(0, 3))
            ]
            part = r.randrange(len(parts))
            parts[0], parts[part] = parts[part], parts[0]
            fields: dict[str, Any] = {
                "parts": parts, "phases": [sum(p["weights"][0] for p in parts) * batch],
                "unit": r.choice(["row", "batch"]), "length": batch * r.randint(1, 30), "seed": r.getrandbits(64),
                "epoch": r.choice([0, 0, 10**6]),
                "shuffle": r.random() < 0.8, "clump": r.choice([1, 1, 5]), "window": r.choice([0, 0, 7]),
                "global_batch": batch,
                "tail": r.choice(["drop", "pad", "keep"]), "rank": r.randrange(world), "world": world,
            }  # fmt: skip
            rows = files.mixture(fields).part_rows(part)
            info = plain.command(kind="mix", part=part, **fields)
            assert info.total_records == len(rows), fields
            got = {node_of(endpoint): plain.stream(endpoint) for endpoint in info.endpoints}
            for node, (lo, hi) in enumerate(metadata(info)["nodes"]):
                mine = whole.take(pa.array([row for row in rows if lo <= row < hi], pa.int64()))
                assert got.get(node, mine.slice(0, 0)).equals(mine), (node, fields)

    def test_a_mixture_of_a_trillion_rows_is_answered_at_once(self, plain: Client) -> None:
        n = plain.table().num_rows
        parts = [{"rows": 10**12, "weights": [7 * 10**11]}, {"rows": n, "weights": [3 * 10**11]}]
        fields = {"unit": "row", "length": 10**12, "seed": 1, "epoch": 0, "global_batch": 1024, "tail": "drop"}
        info = plain.command(kind="mix", part=1, parts=parts, rank=3, world=8, **fields)
        assert info.total_records == pytest.approx(0.3 * 10**12 / 8, rel=0.01), "an estimate"
        reader = plain.node(info.endpoints[0]).do_get(info.endpoints[0].ticket)
        oracle = files.mixture({**fields, "parts": parts, "phases": [], "shuffle": True, "rank": 3, "world": 8})
        lo, hi = metadata(info)["nodes"][node_of(info.endpoints[0])]
        first = [oracle.draw(s * 1024 + 384 + i) for s in range(4) for i in range(128)]
        want = [draw.row for draw in first if draw.part == 1 and lo <= draw.row < hi]
        got = reader.read_chunk().data.slice(0, len(want))
        assert got.column("id").to_pylist() == plain.table().column("id").take(pa.array(want)).to_pylist()
        reader.cancel()


class TestTake:
    """DoExchange: any rows in any order."""

    @pytest.mark.parametrize("name", ["plain", "types", "wide_values"])
    def test_rows_in_the_order_asked(
        self, name: str, mode: Mode, table: Table, caches: Caches, connect: Connect
    ) -> None:
        client = connect(caches.of(table(name), mode=mode))
        whole, r = client.table(), random.Random(4)
        info = client.command(kind="take")
        for endpoint in info.endpoints:
            lo, hi = metadata(info)["nodes"][node_of(endpoint)]
            if lo == hi:
                continue
            picks = [
                [hi - 1, lo],
                [lo] * 3,
                [r.randrange(lo, hi) for _ in range(200)],
                list(range(hi - 1, lo - 1, -1))[:500],
            ]
            for pick, got in zip(picks, client.take(endpoint, *picks), strict=True):
                assert got.equals(whole.take(pa.array(pick, pa.int64())))

    def test_every_node_is_an_endpoint_also_one_without_rows(
        self, mode: Mode, table: Table, caches: Caches, connect: Connect
    ) -> None:
        info = connect(caches.of(table("nine_rows"), mode=mode, nodes=3)).command(kind="take")
        assert [node_of(e) for e in info.endpoints] == [0, 1, 2]

    def test_columns(self, plain: Client) -> None:
        endpoint = plain.command(kind="take", columns=["name", "id"]).endpoints[0]
        (got,) = plain.take(endpoint, [5, 3])
        assert got.equals(plain.table(["name", "id"]).take(pa.array([5, 3])))

    def test_half_a_million_rows_at_once(self, plain: Client) -> None:
        endpoint = plain.command(kind="take", columns=["id"]).endpoints[0]
        (got,) = plain.take(endpoint, [3] * 500_000)
        assert got.num_rows == 500_000
        check_code("INVALID_ARGUMENT", lambda: plain.take(endpoint, [3] * 500_001))

    def test_a_row_of_another_node_is_out_of_range_and_is_named(self, plain: Client) -> None:
        info = plain.command(kind="take")
        bounds = metadata(info)["nodes"]
        for endpoint in info.endpoints:
            lo, hi = bounds[node_of(endpoint)]
            for row in {lo - 1, hi, -1, 2**63 - 1, -(2**63)}:
                message = check_code("OUT_OF_RANGE", partial(plain.take, endpoint, [lo, row]))
                assert str(row) in message

    @pytest.mark.parametrize(
        "batch",
        [
            pa.record_batch([pa.array([0], pa.int64())], names=["index"]),
            pa.record_batch([pa.array([0], pa.int32())], names=["row"]),
            pa.record_batch([pa.array(["0"])], names=["row"]),
            pa.record_batch([pa.array([0], pa.int64())] * 2, names=["row", "more"]),
            pa.record_batch([pa.array([0, None], pa.int64())], names=["row"]),
        ],
        ids=["other name", "int32", "text", "two columns", "null"],
    )
    def test_a_batch_that_is_no_list_of_rows_is_refused(self, batch: pa.RecordBatch, plain: Client) -> None:
        endpoint = plain.command(kind="take").endpoints[0]

        def ask() -> None:
            writer, reader = plain.node(endpoint).do_exchange(command_descriptor(endpoint.ticket.ticket))
            with writer:
                writer.begin(batch.schema)
                writer.write_batch(batch)
                reader.read_chunk()

        check_code("INVALID_ARGUMENT", ask)

    def test_the_other_exchanges_go_on_after_a_refusal(self, plain: Client) -> None:
        info = plain.command(kind="take")
        endpoint = info.endpoints[0]
        check_code("OUT_OF_RANGE", lambda: plain.take(endpoint, [10**6]))
        assert plain.take(endpoint, [0])[0].num_rows == 1
        exchange(plain.node(endpoint), endpoint.ticket.ticket)
