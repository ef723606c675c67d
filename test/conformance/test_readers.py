# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Known readers: who has a right by a token reads over TLS, everybody else is told what to do; audit lines."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import resource
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.flight as fl
import pytest
from client import code_of, command_descriptor
from lake import Made
from readers import AUDIENCE, STATIC, Readers, bearer
from server import Cache, Caches, Mode

from kit.deadline import eventually, limit

Table = Callable[[str], Made]
SHARD = command_descriptor(kind="shard", index=0, total=1, job="claimed")
HANDSHAKE = 10.0  # seconds that a client has for its handshake


@pytest.fixture
def readers(tmp_path: Path) -> Readers:
    """The CA, rules and tokens of a cache."""
    return Readers(tmp_path)


def address(cache: Cache) -> str:
    """HOST:PORT of the head."""
    return cache.endpoint.removeprefix("grpc://")


def head(cache: Cache, readers: Readers) -> fl.FlightClient:
    """A connection to the head over TLS, by the one name that all certificates of the CA have."""
    return fl.connect(f"grpc+tls://{address(cache)}", tls_root_certs=readers.roots, override_hostname="datacache")


def read(info: fl.FlightInfo, **arguments: object) -> pa.Table:
    """The rows of an answer, from the locations as they are: their hosts are in the certificates."""
    parts = [info.schema.empty_table()]
    for endpoint in info.endpoints:
        with fl.connect(endpoint.locations[0], **arguments) as node:
            parts.append(node.do_get(endpoint.ticket).read_all())
    return pa.concat_tables(parts)


def audit(cache: Cache) -> str:
    """The audit lines of all processes."""
    logs = [path.read_text() for path in sorted(cache.logs.glob("*.log"))]
    return "\n".join(line for log in logs for line in log.splitlines() if "audit: " in line)


def test_writers(mode: Mode, private: Callable[..., Cache], readers: Readers) -> None:
    readers.write(writers=["team-a/*"])
    cache = private(["--puts"], mode=mode, env=readers.env)
    cache.wait("Ready")
    with head(cache, readers) as client:

        def act(token: str, action: str, /, **body: object) -> dict[str, object]:
            call = fl.FlightCallOptions(headers=bearer(token))
            answers = list(client.do_action(fl.Action(action, json.dumps({"v": 1, **body}).encode()), call))
            return json.loads(answers[0].body.to_pybytes())

        schema = base64.b64encode(pa.schema({"id": pa.int64()}).serialize().to_pybytes()).decode()
        refused = r"ops/alice may read .* spec[.]arrow[.]puts[.]writers"
        begun = act(readers.token(), "put.begin", name="a", mode="create", parts=1, schema=schema)
        for name, body in (
            ("put.begin", {"name": "a", "mode": "replace", "parts": 1, "schema": schema}),
            ("put.status", {"put": begun["put"]}),
            ("put.abort", {"put": begun["put"]}),
            ("put.drop", {"dataset": "a"}),
        ):
            with pytest.raises(fl.FlightUnauthorizedError, match=refused):
                act(STATIC, name, **body)
        call = fl.FlightCallOptions(headers=bearer(STATIC))

        def put() -> None:
            writer, _ = client.do_put(fl.FlightDescriptor.for_path("a"), pa.schema({"id": pa.int64()}), call)
            writer.close()

        with pytest.raises(fl.FlightUnauthorizedError, match=refused):
            put()
        list(client.list_flights(options=call))
        act(readers.token(), "put.abort", put=begun["put"])


def test_tickets_of_puts_are_of_their_writers(mode: Mode, private: Callable[..., Cache], readers: Readers) -> None:
    cache = private(["--puts"], mode=mode, env=readers.env)
    cache.wait("Ready")
    table = pa.table({"id": pa.array([1, 2, 3], pa.int64())})
    with head(cache, readers) as client:
        schema = base64.b64encode(table.schema.serialize().to_pybytes()).decode()
        body = {"v": 1, "name": "a", "parts": 1, "schema": schema}
        call = fl.FlightCallOptions(headers=bearer(readers.token()))
        begin = fl.Action("put.begin", json.dumps(body).encode())
        begun = json.loads(next(iter(client.do_action(begin, call))).body.to_pybytes())
        sent = {"v": 1, "kind": "put", "ticket": begun["ticket"], "part": 0, "attempt": 1, "end": "open"}

        def put(location: str, **arguments: object) -> None:
            with fl.connect(location, **arguments) as node:
                writer, _ = node.do_put(fl.FlightDescriptor.for_command(json.dumps(sent).encode()), table.schema)
                writer.write_table(table)
                writer.close()

        (location,) = begun["nodes"][:1]
        put(location, tls_root_certs=readers.roots)
        with pytest.raises(fl.FlightUnauthenticatedError, match="known readers over TLS"):
            put(location.replace("grpc+tls://", "grpc://"))
        readers.write(writers=["team-b/*"])
        reason = eventually("a refusal by the new file", lambda: refusal(put, location, tls_root_certs=readers.roots))
        assert "team-a/default may read this cache and not put datasets" in reason


def refusal(call: Callable[..., None], *arguments: object, **named: object) -> str:
    """The reason for which a call is refused; "" if it is not."""
    try:
        call(*arguments, **named)
    except fl.FlightUnauthorizedError as error:
        return str(error)
    return ""


def test_the_limit_of_a_writer(mode: Mode, private: Callable[..., Cache], readers: Readers) -> None:
    readers.write()
    env = {"PUT_LIMIT_PER_WRITER": "24Mi", "PUT_KEEP": "memory"}
    cache = private(["--puts"], mode=mode, env=readers.env | env)
    cache.wait("Ready")
    table = pa.table({"x": np.random.default_rng(1).integers(1 << 62, size=1 << 20)})
    schema = base64.b64encode(table.schema.serialize().to_pybytes()).decode()
    job = readers.token(audience=f"{AUDIENCE}/trainjobs/train")
    refused = r"needed .* used .* of 25165824 bytes .* all that team-a/default may have put: .*limitPerWriter"
    with head(cache, readers) as client:

        def put(token: str, name: str) -> None:
            call = fl.FlightCallOptions(headers=bearer(token))
            writer, _ = client.do_put(fl.FlightDescriptor.for_path(name), table.schema, call)
            writer.write_table(table, max_chunksize=65_536)
            writer.close()

        def act(token: str, action: str, /, **body: object) -> None:
            call = fl.FlightCallOptions(headers=bearer(token))
            list(client.do_action(fl.Action(action, json.dumps({"v": 1, **body}).encode()), call))

        def is_refused(token: str) -> None:
            with pytest.raises(pa.ArrowException, match=refused) as error:
                put(token, "b")
            assert code_of(error.value) == "RESOURCE_EXHAUSTED"

        put(readers.token(), "a")
        is_refused(readers.token())
        is_refused(job)
        begin = {"mode": "create", "parts": 1, "schema": schema, "bytes": 200 << 20}
        with pytest.raises(pa.ArrowException, match=r"bytes: 209715200, and the data nodes have 8.* team-a/default"):
            act(readers.token(), "put.begin", name="b", **begin)
        put(STATIC, "c")
        if mode == "cluster":
            cache.restart("head")
            cache.wait("Ready")
            wait_for(lambda: act(STATIC, "put.drop", dataset="c"))
            is_refused(readers.token())
        act(readers.token(), "put.drop", dataset="a")
        wait_for(lambda: put(readers.token(), "b"))


def wait_for(call: Callable[[], None]) -> None:
    """Calls until it succeeds: data nodes are told of what is dropped, and tell a new head what they have."""

    def succeeds() -> bool:
        try:
            call()
        except pa.ArrowException as error:
            print(error)  # pytest shows it if the test fails
            return False
        return True

    eventually("a call that succeeds", succeeds)


def test_known_readers(
    mode: Mode, table: Table, caches: Caches, private: Callable[..., Cache], readers: Readers
) -> None:
    made = table("plain")
    cache = private(["--metadata", made.metadata], mode=mode, env=readers.env)
    assert cache.wait("Ready")["access"] == {"readers": "Known"}
    with caches.of(made).client() as plain:
        want = plain.table()
    with head(cache, readers) as client:

        def ask(token: str) -> fl.FlightInfo:
            return client.get_flight_info(SHARD, fl.FlightCallOptions(headers=bearer(token)))

        for token in (STATIC, readers.token(audience=f"{AUDIENCE}/trainjobs/train")):
            info = ask(token)
            assert all(e.locations[0].uri.startswith(b"grpc+tls://") for e in info.endpoints)
            assert read(info, tls_root_certs=readers.roots).equals(want)
        with pytest.raises(fl.FlightUnauthenticatedError, match="the call has no token"):
            client.get_flight_info(SHARD)
        for token, code, message in (
            ("made up", "UNAUTHENTICATED", "the token is not valid here"),
            (readers.token("team-c"), "PERMISSION_DENIED", "team-c/default may not read this cache: ask its owner"),
            (
                readers.token(audience=AUDIENCE.replace("reviews", "books")),
                "UNAUTHENTICATED",
                "token is for books, not",
            ),
            (readers.token(aud=[AUDIENCE, "other"]), "UNAUTHENTICATED", "2 audiences"),
            (readers.token(exp=1), "UNAUTHENTICATED", "it expired 1970-01-01T00:00:01Z, now 20"),
            (readers.token(exp=int(time.time()) + 365 * 86_400), "UNAUTHENTICATED", "want at most 24h"),
            (readers.token(header={"alg": "none"}), "UNAUTHENTICATED", "not a JWT"),
            (readers.token(header={"alg": "HS256", "kid": "k1"}), "UNAUTHENTICATED", "not a JWT"),
            (readers.token(header={"alg": "ES256", "kid": "k2"}), "UNAVAILABLE", 'key "k2" is unknown here yet'),
        ):
            for call in (
                ask,
                lambda token: list(client.do_action("status", fl.FlightCallOptions(headers=bearer(token)))),
            ):
                with pytest.raises((pa.ArrowException, fl.FlightError)) as caught:
                    call(token)
                assert code_of(caught.value) == code, caught.value
                assert message in str(caught.value)
    assert cache.status()["access"] == {"readers": "Known", "unknownKey": "k2"}
    lines = audit(cache)
    for part in (
        "a reader asked for rows", "a stream was opened", "a stream has ended", "reader=ops/alice", "pod=train-0",
        "reader=team-a/default", "job=team-a/train", "claimed=claimed", f"rows={want.num_rows}", "kind=shard",
        "audit: denied",
    ):  # fmt: skip
        assert part in lines, f"{part}: {lines}"
    assert STATIC not in lines


def test_plain_text_is_told_what_to_do(
    mode: Mode, table: Table, private: Callable[..., Cache], readers: Readers
) -> None:
    cache = private(["--metadata", table("plain").metadata], mode=mode, env=readers.env)
    cache.wait("Ready")
    sentence = r'known readers over TLS: use kubeflow_datacache in a TrainJob, "kubectl datacache login reviews"'
    with fl.connect(f"grpc://{address(cache)}") as plain:
        for options in (fl.FlightCallOptions(), fl.FlightCallOptions(headers=bearer(STATIC))):
            with pytest.raises(fl.FlightUnauthenticatedError, match=sentence):
                plain.get_flight_info(SHARD, options)
    with head(cache, readers) as client:  # a ticket that somebody saw is of no use in plain text
        info = client.get_flight_info(SHARD, fl.FlightCallOptions(headers=bearer(STATIC)))
        place = info.endpoints[0].locations[0].uri.decode().replace("grpc+tls://", "grpc://")
        with fl.connect(place) as node, pytest.raises(fl.FlightUnauthenticatedError, match=sentence):
            node.do_get(info.endpoints[0].ticket).read_all()


def basic(token: str) -> tuple[bytes, bytes]:
    """The header of a login with a token as password."""
    return b"authorization", b"Basic " + base64.b64encode(f"anybody:{token}".encode())


def test_half_handshakes_keep_no_reader_out(
    mode: Mode, table: Table, private: Callable[..., Cache], readers: Readers
) -> None:
    """Thousands of connections stay in the middle of their TLS handshake, at head and data nodes. A known reader reads
    before their time has passed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 8192)), hard))
    cache = private(["--metadata", table("plain").metadata], mode=mode, env={**readers.env, "MEMORY_LIMIT": "300Mi"})
    cache.wait("Ready")
    call = fl.FlightCallOptions(headers=bearer(STATIC))
    with head(cache, readers) as client:
        info = client.get_flight_info(SHARD, call)
    want = read(info, tls_root_certs=readers.roots)
    places = {address(cache), *(e.locations[0].uri.decode().partition("://")[2] for e in info.endpoints)}
    outgoing = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="datacache").do_handshake()
    hello = outgoing.read()

    def attack(count: int) -> tuple[float, float]:
        """How long it took to open so many connections, and until a reader had the rows after that, in all."""
        with contextlib.ExitStack() as open_ones:
            begun = time.monotonic()
            for i in range(count):
                host, _, port = sorted(places)[i % len(places)].rpartition(":")
                attacker = open_ones.enter_context(socket.create_connection((host, int(port))))
                attacker.sendall((b"", hello[:100], hello)[i // len(places) % 3])
            opened = time.monotonic() - begun
            with head(cache, readers) as client:
                assert read(client.get_flight_info(SHARD, call), tls_root_certs=readers.roots).equals(want)
            return opened, time.monotonic() - begun

    for count in (3000, 1000, 300):  # fewer, if a busy machine can't open so many in half of the time
        opened = whole = 0.0
        for _ in range(3):
            opened, whole = attack(count)
            if whole < HANDSHAKE:
                return
        assert opened > HANDSHAKE / 2, f"{count} connections were open after {opened} s, and the rows came at {whole} s"
    pytest.fail("the machine is too busy to open 300 connections in 10 s")


def test_basic_in_a_handshake(mode: Mode, table: Table, private: Callable[..., Cache], readers: Readers) -> None:
    cache = private(["--metadata", table("plain").metadata], mode=mode, env=readers.env)
    cache.wait("Ready")
    with head(cache, readers) as client:
        assert client.authenticate_basic_token("anybody", STATIC) == bearer(STATIC)[0]
        with pytest.raises(fl.FlightUnauthenticatedError, match="not valid here"):
            client.authenticate_basic_token("anybody", "made up")
        assert client.get_flight_info(SHARD, fl.FlightCallOptions(headers=[basic(STATIC)])).endpoints


def proposals_rows(cache: Cache) -> pa.Table:
    """All rows, asked for and read as the client that Kubeflow's enhancement proposal 2655 prints does it."""
    with fl.connect(cache.endpoint) as client:
        return read(client.get_flight_info(fl.FlightDescriptor.for_path("0", "1")))


def test_the_proposals_client(
    mode: Mode, table: Table, caches: Caches, private: Callable[..., Cache], readers: Readers
) -> None:
    made = table("plain")
    with caches.of(made).client() as plain:
        want = plain.table()
    assert proposals_rows(caches.of(made, mode=mode)).equals(want)
    readers.write(readers="Anyone")
    cache = private(["--metadata", made.metadata], mode=mode, env=readers.env)
    cache.wait("Ready")
    assert proposals_rows(cache).equals(want)
    readers.write()
    eventually("the file to be read again", lambda: cache.status()["access"]["readers"] == "Known")
    with pytest.raises(fl.FlightUnauthenticatedError, match="takes known readers over TLS: use kubeflow_datacache"):
        proposals_rows(cache)


def test_refusals_are_counted_and_said_once_a_second(
    mode: Mode, table: Table, private: Callable[..., Cache], readers: Readers
) -> None:
    cache = private(["--metadata", table("plain").metadata], mode=mode, env=readers.env)
    cache.wait("Ready")
    begun, calls = time.monotonic(), 100
    with head(cache, readers) as client:
        for _ in range(calls):
            with pytest.raises(fl.FlightUnauthenticatedError, match="not valid here"):
                client.get_flight_info(SHARD, fl.FlightCallOptions(headers=bearer("made up")))
    said, most = audit(cache).count("audit: denied"), time.monotonic() - begun + 1
    assert 1 <= said <= most
    _, metrics = cache.get("/metrics")
    assert f'datacache_requests_total{{code="Unauthenticated",method="GetFlightInfo"}} {calls}\n' in metrics


def test_failed_handshakes_are_counted_and_said_once_a_second(
    mode: Mode, table: Table, private: Callable[..., Cache], readers: Readers
) -> None:
    cache = private(["--metadata", table("plain").metadata], mode=mode, env=readers.env)
    cache.wait("Ready")
    host, port = address(cache).split(":")
    begun, tries = time.monotonic(), 40
    without_ca = ssl.create_default_context()
    for i in range(tries):
        with socket.create_connection((host, int(port)), limit()) as conn:
            if i % 2:
                conn.sendall(b"\x16\x03\x01\x00\x05hello")
                assert conn.recv(100), "no alert"
            else:
                with pytest.raises(ssl.SSLCertVerificationError):
                    without_ca.wrap_socket(conn, server_hostname="datacache")
    with socket.create_connection((host, int(port)), limit()):  # as a port check does it
        pass
    sample = re.compile(r"^datacache_tls_handshakes_failed_total (\d+)$", re.MULTILINE)
    eventually(f"{tries} counted handshakes", lambda: sample.findall(cache.get("/metrics")[1]) == [str(tries)])
    said = "\n".join(path.read_text() for path in cache.logs.glob("*.log")).count("TLS handshake failed")
    assert 1 <= said <= time.monotonic() - begun + 1


def test_anyone_by_tls_and_in_plain_text(
    mode: Mode, table: Table, private: Callable[..., Cache], readers: Readers
) -> None:
    made = table("plain")
    cache = private(["--metadata", made.metadata], mode=mode, env={"TLS_AUTHORITY": str(readers.authority)})
    cache.wait("Ready")
    with head(cache, readers) as secure, fl.connect(f"grpc://{address(cache)}") as plain:
        by_tls, in_plain = secure.get_flight_info(SHARD), plain.get_flight_info(SHARD)
        schemes = [{e.locations[0].uri.partition(b":")[0] for e in info.endpoints} for info in (by_tls, in_plain)]
        assert schemes == [{b"grpc+tls"}, {b"grpc"}]
        assert read(by_tls, tls_root_certs=readers.roots).equals(read(in_plain))


def test_rules_change_while_a_stream_is_read(table: Table, private: Callable[..., Cache], readers: Readers) -> None:
    cache = private(["--metadata", table("plain").metadata], env=readers.env)
    cache.wait("Ready")
    readers.write(rows="Plain")
    with head(cache, readers) as client:
        options = fl.FlightCallOptions(headers=bearer(readers.token()))

        def in_plain() -> fl.FlightInfo | None:
            info = client.get_flight_info(SHARD, options)
            return None if info.endpoints[0].locations[0].uri.startswith(b"grpc+tls") else info

        info = eventually("the file to be read again", in_plain)
        descriptor = fl.FlightDescriptor.for_command(
            client.get_flight_info(command_descriptor(kind="take"), options).endpoints[0].ticket.ticket
        )
        with fl.connect(info.endpoints[0].locations[0]) as node:
            writer, reader = node.do_exchange(descriptor)
            writer.begin(pa.schema([("row", pa.int64())]))
            asked = pa.record_batch([pa.array([0], pa.int64())], names=["row"])
            writer.write_batch(asked)
            assert reader.read_chunk().data.num_rows == 1
            readers.write(rows="Plain", namespaces=["team-b"])
            with pytest.raises(pa.ArrowException, match="team-a/default may not read this cache"):
                reader.read_chunk()
            with pytest.raises(pa.ArrowException, match="team-a/default may not read this cache"):
                client.get_flight_info(SHARD, options)
            with pytest.raises(pa.ArrowException, match="team-a/default may not read this cache"):
                node.do_get(info.endpoints[0].ticket).read_all()


def test_readers_known_needs_tls(caches: Caches, table: Table, readers: Readers) -> None:
    done = caches.run("local", "--metadata", table("plain").metadata, "--access", str(readers.access))
    assert done.returncode == 1
    assert "without TLS whoever sees the network would have their tokens: give --tls-authority" in done.stderr
    readers.access.write_text(json.dumps({"readers": "Nobody"}))
    done = caches.run("local", "--metadata", table("plain").metadata, env=readers.env)
    assert done.returncode == 1
    assert 'readers: "Nobody", want Anyone or Known' in done.stderr
