# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tickets: only unmodified tickets that the head issued for this cache open a stream."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from client import Client, code_of, metadata
from lake import Made
from server import Cache, Caches, Mode
from test_wire import check_code, exchange

Table = Callable[[str], Made]
Connect = Callable[[Cache], Client]

REFUSALS = ("UNAUTHENTICATED", "INVALID_ARGUMENT")


@pytest.fixture
def client(mode: Mode, table: Table, caches: Caches, connect: Connect) -> Client:
    """A client of the plain table on two nodes."""
    return connect(caches.of(table("plain"), mode=mode))


def refusal(target: fl.FlightClient, ticket: bytes) -> str:
    """The error code for a ticket; fails if the ticket is accepted."""
    try:
        got = target.do_get(fl.Ticket(ticket)).read_all()
    except pa.ArrowException as error:
        return code_of(error)
    raise AssertionError(f"a ticket that nobody made was served with {got.num_rows} rows: {ticket!r}")


@pytest.mark.parametrize("request_kind", ["shard", "epoch", "take"])
def test_a_flipped_bit_in_any_byte_is_refused(request_kind: str, client: Client) -> None:
    fields = {
        "shard": {"index": 0, "total": 1, "columns": ["id", "name"]},
        "epoch": {
            "seed": 7, "epoch": 1, "shuffle": True, "clump": 1, "global_batch": 64, "tail": "keep",
            "rank": 0, "world": 2,
        },
        "take": {},
    }[request_kind]  # fmt: skip
    endpoint = client.command(kind=request_kind, **fields).endpoints[0]
    ticket, node = endpoint.ticket.ticket, client.node(endpoint)
    for i in range(len(ticket)):
        changed = bytearray(ticket)
        changed[i] ^= 1 << (i % 8)
        assert refusal(node, bytes(changed)) in REFUSALS, f"byte {i} of {len(ticket)}"


def test_a_cut_or_longer_ticket_is_refused(client: Client) -> None:
    endpoint = client.path(0, 1).endpoints[0]
    ticket, node = endpoint.ticket.ticket, client.node(endpoint)
    for n in {0, 1, 2, 8, len(ticket) // 2, len(ticket) - 1}:
        assert refusal(node, ticket[:n]) in REFUSALS, f"cut to {n} bytes"
    for tail in (b"\0", b" ", ticket, b"x" * 1000):
        assert refusal(node, ticket + tail) in REFUSALS


@pytest.mark.parametrize("ticket", [b"", b"\0" * 64, b"{}", b'{"v":1}', b"\xff" * 200], ids=repr)
def test_bytes_that_are_no_ticket_are_refused(ticket: bytes, client: Client) -> None:
    node = client.node(client.path(0, 1).endpoints[0])
    assert refusal(node, ticket) in REFUSALS
    check_code(refusal(node, ticket), lambda: exchange(node, ticket))


def test_a_ticket_over_64_kib_is_an_invalid_argument(client: Client) -> None:
    node = client.node(client.path(0, 1).endpoints[0])
    assert refusal(node, b"x" * (64 * 1024 + 1)) == "INVALID_ARGUMENT"
    check_code("INVALID_ARGUMENT", lambda: exchange(node, b"x" * (64 * 1024 + 1)))


def test_a_ticket_is_for_its_own_node(client: Client) -> None:
    first, second = client.path(0, 1).endpoints
    assert refusal(client.node(second), first.ticket.ticket) in (
        "FAILED_PRECONDITION",
        "UNAVAILABLE",
        "UNAUTHENTICATED",
    )


def test_a_ticket_of_a_shard_does_not_open_an_exchange_and_the_other_way_round(client: Client) -> None:
    shard, take = client.path(0, 1).endpoints[0], client.command(kind="take").endpoints[0]
    check_code("INVALID_ARGUMENT", lambda: exchange(client.node(shard), shard.ticket.ticket))
    assert refusal(client.node(take), take.ticket.ticket) == "INVALID_ARGUMENT"


@pytest.mark.parametrize("name", ["plain", "one_file"])
def test_a_ticket_of_another_cache_is_refused(
    name: str, client: Client, table: Table, private: Callable[..., Cache], mode: Mode, connect: Connect
) -> None:
    """The same table in another cache, and another table; in clusters even with the same key."""
    other_cache = private(["--metadata", table(name).metadata], mode=mode)
    other_cache.wait("Ready")
    other = connect(other_cache)
    foreign = other.path(0, 1).endpoints[0].ticket.ticket
    for endpoint in client.path(0, 1).endpoints:
        assert refusal(client.node(endpoint), foreign) in ("UNAUTHENTICATED", "FAILED_PRECONDITION", "UNAVAILABLE")
    same = metadata(other.path(0, 1))["dataset"]["fingerprint"] == metadata(client.path(0, 1))["dataset"]["fingerprint"]
    assert same == (name == "plain")


def test_a_ticket_of_before_a_restart_is_refused_and_a_new_one_is_good(
    mode: Mode, table: Table, private: Callable[..., Cache], connect: Connect
) -> None:
    source = ["--metadata", table("one_file").metadata]
    before = private(source, mode=mode)
    before.wait("Ready")
    old = connect(before).path(0, 1).endpoints[0].ticket.ticket
    before.stop()
    after = private(source, mode=mode)
    after.wait("Ready")
    client = connect(after)
    endpoint = client.path(0, 1).endpoints[0]
    assert refusal(client.node(endpoint), old) in ("UNAUTHENTICATED", "FAILED_PRECONDITION", "UNAVAILABLE")
    assert client.table().num_rows == 777
