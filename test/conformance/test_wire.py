# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Wire contract v1 as clients see it: descriptors, answers, streams, actions, errors."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from typing import Any

import golden as files
import pyarrow as pa
import pyarrow.flight as fl
import pytest
from canon import rows_of
from client import Client, code_of, command_descriptor, metadata, node_of, path_descriptor
from lake import Made, Selection
from server import Cache, Caches, Mode

from kit.deadline import pause

Table = Callable[[str], Made]
Connect = Callable[[Cache], Client]


def descriptor_of(case: dict[str, Any]) -> fl.FlightDescriptor:
    """The descriptor of a golden case."""
    if "path" in case:
        return path_descriptor(*case["path"])
    body = base64.b64decode(case["base64"]) if "base64" in case else json.dumps(case["command"]).encode()
    return command_descriptor(body)


def _busy_us(chunk: fl.FlightStreamChunk) -> int:
    """How long the node worked on a message, by its app_metadata."""
    return json.loads(chunk.app_metadata.to_pybytes())["busy_us"]


@pytest.fixture
def nine(mode: Mode, table: Table, caches: Caches, connect: Connect) -> Client:
    """A client of nine rows on two nodes."""
    return connect(caches.of(table("nine_rows"), mode=mode))


@pytest.fixture
def plain(mode: Mode, table: Table, caches: Caches, connect: Connect) -> Client:
    """A client of the plain table on two nodes."""
    return connect(caches.of(table("plain"), mode=mode))


class TestDescriptors:
    """Every golden descriptor is answered or rejected as its file says."""

    @pytest.mark.parametrize("case", files.load("wire_descriptors.json"), ids=lambda case: case["name"])
    @pytest.mark.parametrize("call", ["get_flight_info", "get_schema"])
    def test_golden(self, case: dict[str, Any], call: str, nine: Client) -> None:
        ask = getattr(nine.head, call)
        if case["want"]["code"] == "OK":
            columns = case["want"]["request"]["columns"] or files.COLUMNS
            assert ask(descriptor_of(case)).schema.names == columns
            return
        with pytest.raises(pa.ArrowException) as refused:
            ask(descriptor_of(case))
        assert code_of(refused.value) == case["want"]["code"]
        assert case["want"]["says"] in str(refused.value)

    def test_an_unknown_column_is_answered_with_the_columns_there_are(self, nine: Client) -> None:
        with pytest.raises(pa.ArrowInvalid) as refused:
            nine.command(kind="take", columns=["nope"])
        assert all(name in str(refused.value) for name in files.COLUMNS)

    def test_the_head_answers_after_all_that(self, nine: Client) -> None:
        assert nine.path(0, 1).total_records == 9

    @pytest.mark.parametrize("file", files.FILES)
    def test_the_golden_files_are_up_to_date(self, file: str) -> None:
        assert (files.FOLDER / file).read_text() == files.text(file), "run 'make generate'"


class TestAnswers:
    """The content of FlightInfo, and that streams agree with it."""

    @pytest.mark.parametrize(
        ("name", "nodes"),
        [("nine_rows", 1), ("nine_rows", 2), ("nine_split", 2)],
        ids=["one node", "an idle node", "two nodes"],
    )
    def test_golden(self, name: str, nodes: int, mode: Mode, table: Table, caches: Caches, connect: Connect) -> None:
        client = connect(caches.of(table(name), mode=mode, nodes=nodes))
        whole, layout = client.table(), metadata(client.path(0, 1))["nodes"]
        cases = [c for c in files.load("wire_answers.json") if c["nodes"] == layout]
        assert cases, f"no golden answer for the layout {layout}"
        for case in cases:
            info = client.command(**case["request"])
            want = case["want"]
            assert info.total_records == want["total_records"], case
            assert [node_of(e) for e in info.endpoints] == [e["node"] for e in want["endpoints"]], case
            for endpoint, part in zip(info.endpoints, want["endpoints"], strict=True):
                assert client.stream(endpoint).equals(whole.take(pa.array(part["rows"], pa.int64()))), case

    def test_an_answer_describes_the_dataset(self, plain: Client, table: Table) -> None:
        info = plain.path(0, 1)
        made = table("plain").open()
        answer = metadata(info)
        assert set(answer) == {"v", "dataset", "rows", "nodes"}
        assert answer["v"] == 1
        assert answer["rows"] == info.total_records == 10_001
        assert answer["dataset"]["table_uuid"] == str(made.metadata.table_uuid)
        assert answer["dataset"]["snapshot"] == made.metadata.current_snapshot_id
        assert answer["dataset"]["fingerprint"]
        assert answer["dataset"]["filter"] == ""
        starts, ends = zip(*answer["nodes"], strict=True)
        assert (starts[0], ends[-1]) == (0, 10_001)
        assert starts[1:] == ends[:-1], "node ranges have a gap or overlap"

    def test_the_filter_is_named_as_it_was_given(self, table: Table, caches: Caches, connect: Connect) -> None:
        text = "id  <  5000 and name is not null"
        client = connect(caches.of(table("plain"), Selection(where=text)))
        assert metadata(client.path(0, 1))["dataset"]["filter"] == text

    def test_metadata_has_the_fields_of_the_golden_file(self, plain: Client) -> None:
        golden = {case["name"]: case["metadata"] for case in files.load("wire_metadata.json")}
        info = plain.path(0, 1)
        answer = metadata(info)
        assert list(answer) == list(golden["answer"])
        assert list(answer["dataset"]) == list(golden["answer"]["dataset"])
        assert list(json.loads(info.endpoints[0].app_metadata)) == list(golden["endpoint"])
        chunk = plain.node(info.endpoints[0]).do_get(info.endpoints[0].ticket).read_chunk()
        assert list(json.loads(chunk.app_metadata.to_pybytes())) == list(golden["batch"])

    def test_an_answer_counts_rows_and_bytes_and_is_ordered(self, plain: Client) -> None:
        info = plain.path(1, 3)
        got = plain.read(info)
        assert info.total_records == got.num_rows == 10_001 * 2 // 3 - 10_001 // 3
        assert 0.5 < info.total_bytes / got.nbytes < 2
        assert info.ordered

    def test_every_endpoint_has_exactly_one_location_of_plain_grpc(self, plain: Client) -> None:
        for info in (plain.path(0, 1), plain.command(kind="take")):
            assert len(info.endpoints) == 2
            for endpoint in info.endpoints:
                (location,) = endpoint.locations
                assert location.uri.startswith(b"grpc://")

    def test_the_fingerprint_is_the_dataset_not_the_process(
        self, table: Table, caches: Caches, connect: Connect
    ) -> None:
        made = table("plain")
        prints = [metadata(connect(caches.of(made, nodes=n)).path(0, 1))["dataset"]["fingerprint"] for n in (2, 3)]
        other = metadata(connect(caches.of(table("one_file"))).path(0, 1))["dataset"]["fingerprint"]
        assert prints[0] == prints[1] != other

    @pytest.mark.parametrize("name", ["empty", "no_snapshot"])
    def test_a_table_without_rows_is_ready_and_answers_with_nothing(
        self, name: str, mode: Mode, table: Table, caches: Caches, connect: Connect
    ) -> None:
        client = connect(caches.of(table(name), mode=mode))
        for info in (
            client.path(0, 1),
            client.path(3, 8),
            client.command(**files._EPOCH),
            client.command(kind="shard", index=0, total=1),
        ):
            assert (info.total_records, info.total_bytes, info.endpoints) == (0, 0, [])
            assert info.schema.names == files.COLUMNS
        assert client.status()["state"] == "Ready"


class TestNarrow:
    """Integers in shorter types, where a request wants them."""

    def test_streams_have_the_shortest_types_of_the_table(self, plain: Client) -> None:
        whole = plain.table()
        for columns in (None, ["name", "small", "id"], ["length(name)", "id"]):
            fields: dict[str, Any] = {"columns": columns} if columns else {}
            want = plain.table(columns)
            for kind in (
                {"kind": "shard", "index": 0, "total": 1},
                {**files._EPOCH, "world": 1, "rank": 0, "shuffle": False},
            ):
                info = plain.command(**kind, **fields, narrow=True)
                assert info.schema.equals(want.schema)
                streams = [plain.stream(endpoint) for endpoint in info.endpoints]
                types = {field.name: field.type for field in streams[0].schema}
                assert types["id"] == pa.uint16()
                assert types.get("small", pa.int8()) == pa.int8()
                assert {each.schema for each in streams} == {streams[0].schema}
                assert pa.concat_tables(streams).cast(want.schema).equals(want)
        offer = plain.command(kind="take")
        for endpoint in plain.command(kind="take", narrow=True).endpoints:
            start, end = metadata(offer)["nodes"][node_of(endpoint)]
            rows = [end - 1, start, start]
            (got,) = plain.take(endpoint, rows)
            assert got.schema.field("id").type == pa.uint16()
            assert got.cast(whole.schema).equals(whole.take(pa.array(rows)))

    def test_only_takes_are_answered_with_the_offer(self, plain: Client) -> None:
        assert metadata(plain.command(kind="take"))["narrow"] is True
        assert metadata(plain.command(kind="take", narrow=True))["narrow"] is True
        for info in (
            plain.command(kind="take", columns=["name", "ratio"]),
            plain.path(0, 1),
            plain.command(kind="shard", index=0, total=1, narrow=True),
        ):
            assert "narrow" not in metadata(info)

    def test_a_filter_does_not_change_the_types(self, plain: Client) -> None:
        info = plain.command(kind="shard", index=0, total=1, filter="id < 100", narrow=True)
        streams = [plain.stream(endpoint) for endpoint in info.endpoints]
        assert {each.schema.field("id").type for each in streams} == {pa.uint16()}
        assert sum(each.num_rows for each in streams) == 100

    def test_without_the_field_nothing_is_shorter(self, plain: Client) -> None:
        off: dict[str, Any] = {"narrow": False}
        for fields in ({}, off):
            info = plain.command(kind="shard", index=0, total=1, **fields)
            assert all(plain.stream(endpoint).schema.equals(info.schema) for endpoint in info.endpoints)


class TestShards:
    """PATH [index, total], whose meaning never changes."""

    @pytest.mark.parametrize("total", [1, 2, 3, 7, 8, 64, 1000])
    def test_shares_laid_end_to_end_are_the_table(self, total: int, plain: Client) -> None:
        shares = [plain.read(plain.path(i, total)) for i in range(total)]
        assert pa.concat_tables(shares).equals(plain.table())
        assert [s.num_rows for s in shares] == [(i + 1) * 10_001 // total - i * 10_001 // total for i in range(total)]

    @pytest.mark.parametrize("total", [8, 9, 10, 100])
    def test_nine_rows_over_more_ranks(self, total: int, nine: Client) -> None:
        shares = [nine.read(nine.path(i, total)) for i in range(total)]
        assert pa.concat_tables(shares).equals(nine.table())
        assert max(s.num_rows for s in shares) - min(s.num_rows for s in shares) <= 1
        assert all(bool(nine.path(i, total).endpoints) == bool(s.num_rows) for i, s in enumerate(shares))

    def test_totals_near_two_to_the_63(self, nine: Client) -> None:
        total = 2**63 - 1
        edges = sorted({0, total - 1, *(row * total // 9 + d for row in range(1, 9) for d in (-1, 0, 1))})
        assert sum(nine.path(i, total).total_records for i in edges) == 9
        assert nine.read(nine.path(total - 1, total)).equals(nine.table().slice(8))

    def test_a_shard_by_command_is_the_shard_by_path(self, plain: Client) -> None:
        for i in range(5):
            assert plain.read(plain.command(kind="shard", index=i, total=5)).equals(plain.read(plain.path(i, 5)))

    def test_columns_of_a_request(self, plain: Client) -> None:
        whole = plain.table()
        for columns in (["id"], ["name", "id"], files.COLUMNS[::-1]):
            info = plain.command(kind="shard", index=1, total=3, columns=columns)
            assert info.schema.names == columns
            assert plain.read(info).equals(plain.read(plain.path(1, 3)).select(columns))
            assert whole.select(columns).schema.equals(info.schema)


EPOCH: dict[str, Any] = {"kind": "epoch", "seed": 7, "epoch": 2, "tail": "drop", "rank": 0, "world": 1}


class TestStreams:
    """The content of streams. client.batches() itself asserts that no batch is empty or far over 4 MiB."""

    @pytest.mark.parametrize("name", ["plain", "wide_values"])
    @pytest.mark.parametrize(
        "command",
        [
            {"kind": "shard", "index": 0, "total": 1},
            {**EPOCH, "shuffle": True, "global_batch": 250},
            {**EPOCH, "shuffle": False, "global_batch": 250},
        ],
        ids=["shard", "shuffled", "not shuffled"],
    )
    def test_buffers_of_large_messages_are_aligned(
        self, name: str, command: dict[str, Any], mode: Mode, table: Table, caches: Caches, connect: Connect
    ) -> None:
        client = connect(caches.of(table(name), mode=mode))
        addresses = [
            buffer.address
            for endpoint in client.command(**command).endpoints
            for batch in client.batches(endpoint)[1]
            if batch.nbytes > 16 << 10
            for column in batch.columns
            for buffer in column.buffers()
            if buffer is not None and buffer.size
        ]
        assert addresses
        assert not any(address % 16 for address in addresses)

    @pytest.mark.parametrize(
        "command",
        [{"kind": "shard", "index": 0, "total": 1}, {**EPOCH, "shuffle": True, "global_batch": 16}],
        ids=["shard", "epoch"],
    )
    def test_batches_say_how_long_the_node_worked(self, command: dict[str, Any], plain: Client) -> None:
        """Each more than no time, and all together no more than passed while the client did nothing but read."""
        for endpoint in plain.command(**command).endpoints:
            begin = time.perf_counter()
            busy = [_busy_us(chunk) for chunk in plain.node(endpoint).do_get(endpoint.ticket)]
            assert busy
            assert min(busy) > 0
            assert sum(busy) <= (time.perf_counter() - begin) * 1e6

    def test_a_client_that_does_not_read_is_not_the_nodes_work(
        self, mode: Mode, table: Table, caches: Caches, connect: Connect
    ) -> None:
        """Before a client reads, flow control holds a message of 6 MB back: that wait is in no message's time."""
        client = connect(caches.of(table("wide_values"), mode=mode, nodes=1))
        (endpoint,) = client.command(kind="shard", index=0, total=1).endpoints
        busy, wall = 0, 0.0
        for seconds in (1, 8, 64):  # the node needs a part of it until the message is held back, more on a busy machine
            begin = time.perf_counter()
            reader = client.node(endpoint).do_get(endpoint.ticket)
            pause(seconds)
            busy = sum(_busy_us(chunk) for chunk in reader)
            wall = (time.perf_counter() - begin) * 1e6
            if 0 < busy < wall - seconds / 2 * 1e6:
                return
        pytest.fail(f"the node was busy for {busy} of {wall} us")

    @pytest.mark.parametrize("shuffle", [True, False])
    @pytest.mark.parametrize("global_batch", [1, 7, 250, 2500])
    def test_batches_of_an_epoch_end_with_steps(
        self, shuffle: bool, global_batch: int, mode: Mode, table: Table, caches: Caches, connect: Connect
    ) -> None:
        client = connect(caches.of(table("plain"), mode=mode, nodes=1))
        info = client.command(**EPOCH, shuffle=shuffle, global_batch=global_batch)
        (endpoint,) = info.endpoints
        _, batches = client.batches(endpoint)
        assert sum(b.num_rows for b in batches) == info.total_records
        assert not any(b.num_rows % global_batch for b in batches)

    def test_large_values_come_in_batches_of_bounded_size(
        self, mode: Mode, table: Table, caches: Caches, connect: Connect
    ) -> None:
        made = table("wide_values")
        client = connect(caches.of(made, mode=mode))
        _, batches = client.batches(client.path(0, 1).endpoints[0])
        assert len(batches) > 5
        assert rows_of(client.table()) == rows_of(made.scan())

    def test_a_row_group_that_fits_comes_in_one_batch(
        self, mode: Mode, table: Table, caches: Caches, connect: Connect
    ) -> None:
        client = connect(caches.of(table("one_file"), mode=mode))
        (endpoint,) = client.path(0, 1).endpoints
        _, batches = client.batches(endpoint)
        assert [b.num_rows for b in batches] == [777]

    def test_types_are_the_same_from_every_node_and_in_the_answer(
        self, mode: Mode, table: Table, caches: Caches, connect: Connect
    ) -> None:
        client = connect(caches.of(table("types"), mode=mode, nodes=3))
        info = client.path(0, 1)
        assert len(info.endpoints) == 3
        schemas = [client.batches(endpoint)[0] for endpoint in info.endpoints]
        assert all(s.equals(info.schema, check_metadata=True) for s in schemas)
        assert not any(pa.types.is_dictionary(f.type) for f in info.schema)
        assert client.head.get_schema(path_descriptor(0, 1)).schema.equals(info.schema, check_metadata=True)

    def test_a_ticket_may_be_read_twice_and_by_two_clients_at_once(
        self, plain: Client, table: Table, connect: Connect
    ) -> None:
        info = plain.path(0, 1)
        one, two = (plain.node(e) for e in info.endpoints)
        first, second = one.do_get(info.endpoints[0].ticket), one.do_get(info.endpoints[0].ticket)
        other = two.do_get(info.endpoints[1].ticket)
        a, b, c = second.read_all(), first.read_all(), other.read_all()
        assert a.equals(b)
        assert pa.concat_tables([a, c]).equals(plain.table())

    def test_a_stream_that_is_cancelled_leaves_the_connection_good(self, plain: Client) -> None:
        endpoint = plain.path(0, 1).endpoints[0]
        for _ in range(20):
            reader = plain.node(endpoint).do_get(endpoint.ticket)
            reader.cancel()
        assert plain.table().num_rows == 10_001


class TestRest:
    """The other Flight calls."""

    def test_list_flights_has_one_entry_the_dataset(self, plain: Client) -> None:
        (info,) = plain.head.list_flights()
        assert info.total_records == 10_001
        assert metadata(info) == metadata(plain.path(0, 1))
        assert plain.read(info).equals(plain.table())

    def test_list_actions(self, plain: Client) -> None:
        actions = plain.head.list_actions()
        assert [action.type for action in actions] == ["status", "sizing"]
        assert all(action.description for action in actions)
        node = plain.node(plain.command(kind="take").endpoints[0])
        assert [action.type for action in node.list_actions()] == ["status"]

    def test_sizing(self, plain: Client) -> None:
        (result,) = plain.head.do_action(("sizing", b'{"ranks": 40, "rate": 500000000}'))
        assert json.loads(result.body.to_pybytes())["connections"] == 80
        for body in (b"", b"[]", b'{"ranks": "many"}', b'{"ranks": -1}', b'{"ranks": 1, "rate": -1}'):
            check_code("INVALID_ARGUMENT", lambda body=body: list(plain.head.do_action(("sizing", body))))

    def test_status_is_the_one_of_http(self, mode: Mode, table: Table, caches: Caches, connect: Connect) -> None:
        cache = caches.of(table("plain"), mode=mode)
        client = connect(cache)
        assert any(client.status() == cache.status() for _ in range(20)), (
            "data nodes report once a second, between two reads at most once"
        )
        status = client.status()
        assert status["state"] == "Ready"
        assert status["rows"] == sum(n["rows"] for n in status["nodes"]) == 10_001
        assert status["bytes"] == sum(n["bytes"] for n in status["nodes"]) > 0
        assert status["splits"]["done"] == status["splits"]["total"] > 0
        assert [n["index"] for n in status["nodes"]] == [0, 1]
        assert {"index", "address", "state", "rows", "bytes", "splits"} <= set(status["nodes"][0])
        assert {"reason", "table", "snapshot"} <= set(status)

    def test_probes_and_metrics(self, mode: Mode, table: Table, caches: Caches) -> None:
        cache = caches.of(table("plain"), mode=mode)
        assert cache.get("/healthz")[0] == cache.get("/ready")[0] == 200
        code, text = cache.get("/metrics")
        assert code == 200
        assert "# HELP" in text
        assert "go_goroutines" in text
        assert cache.get("/no-such-page")[0] == 404

    def test_the_time_of_streams_is_counted_by_side(self, table: Table, caches: Caches, connect: Connect) -> None:
        cache = caches.of(table("plain"))
        client = connect(cache)
        client.read(client.path(0, 1))
        lines = dict(line.rsplit(" ", 1) for line in cache.get("/metrics")[1].splitlines())
        for side in ("work", "send_wait"):
            assert float(lines[f'datacache_stream_{side}_seconds_total{{kind="shard"}}']) > 0

    @pytest.mark.parametrize("action", ["no-such-action", "", "Status", "shutdown"])
    def test_other_actions_are_unimplemented(self, action: str, plain: Client) -> None:
        check_code("UNIMPLEMENTED", lambda: list(plain.head.do_action(action)))

    @pytest.mark.parametrize(
        ("role", "call"),
        [
            *[("head", call) for call in ("handshake", "do_get", "do_exchange")],
            *[("node", call) for call in ("handshake", "get_flight_info", "list_flights")],
        ],
    )
    def test_calls_of_the_other_role_are_unimplemented_and_harmless(self, role: str, call: str, plain: Client) -> None:
        endpoint = plain.path(0, 1).endpoints[0]
        target = plain.head if role == "head" else plain.node(endpoint)
        calls: dict[str, Callable[[], object]] = {
            "handshake": lambda: target.authenticate_basic_token("user", "password"),
            "do_get": lambda: target.do_get(endpoint.ticket).read_all(),
            "do_exchange": lambda: exchange(target, endpoint.ticket.ticket),
            "get_flight_info": lambda: target.get_flight_info(path_descriptor(0, 1)),
            "list_flights": lambda: list(target.list_flights()),
        }
        check_code("UNIMPLEMENTED", calls[call])
        assert plain.table().num_rows == 10_001

    def test_puts_are_denied_unless_they_were_allowed(self, plain: Client) -> None:
        check_code("PERMISSION_DENIED", lambda: put(plain.head))
        check_code("INVALID_ARGUMENT", lambda: put(plain.node(plain.path(0, 1).endpoints[0])))  # it has no ticket
        assert plain.table().num_rows == 10_001


def check_code(code: str, call: Callable[[], object]) -> str:
    """Asserts that the call fails with this gRPC code; returns its message."""
    with pytest.raises(Exception) as refused:  # noqa: PT011 - which class it is belongs to pyarrow, the code to us
        call()
    assert code_of(refused.value) == code, str(refused.value)
    return str(refused.value)


def put(target: fl.FlightClient) -> None:
    """Calls DoPut."""
    writer, _ = target.do_put(path_descriptor("0", "1"), pa.schema([("a", pa.int64())]))
    writer.write_batch(pa.record_batch([pa.array([1])], names=["a"]))
    writer.close()


def exchange(target: fl.FlightClient, command: bytes) -> None:
    """Calls DoExchange and reads one response."""
    writer, reader = target.do_exchange(fl.FlightDescriptor.for_command(command))
    with writer:
        writer.begin(pa.schema([("row", pa.int64())]))
        writer.write_batch(pa.record_batch([pa.array([0], pa.int64())], names=["row"]))
        reader.read_chunk()
