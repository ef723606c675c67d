# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The h2 client against scripted servers: valid and invalid use of HTTP/2 and gRPC."""

from __future__ import annotations

import contextlib
import random
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest
import script
from chance import Chance
from kit.deadline import limit
from peer import SCHEMA, rows_of
from script import Connection, Script, data, flight_data, headers, message, trailers

from kubeflow_datacache.codes import CALL_ERRORS, code_of, reason_of
from kubeflow_datacache.credentials import Credentials
from kubeflow_datacache.h2 import Reader, connection, frames
from kubeflow_datacache.h2.message import _FRONT  # pyright: ignore[reportPrivateUsage]

BATCH = rows_of(list(range(50)))
WHOLE = flight_data(SCHEMA) + flight_data(BATCH, b'{"busy_us":7}')
ANSWER = headers() + data(WHOLE) + trailers()

WINDOW = 100_000  # window of the connection

Play = Callable[[Connection], None]


def answering(*parts: bytes) -> Play:
    """A script that receives the request and sends the parts."""

    def play(connection: Connection) -> None:
        connection.request()
        connection.send(*parts)

    return play


def reader_of(location: str, ticket: bytes = b"ticket") -> Reader:
    return Reader(
        location, ticket, headers=[("name", "value")], window=WINDOW, credentials=Credentials(), other=pytest.fail
    )


def read(play: Play, ticket: bytes = b"ticket") -> list[tuple[pa.RecordBatch, bytes | None]]:
    """Reads all batches that a script sends, with their app_metadata."""
    with Script(play) as server:
        return [
            (batch, app_metadata and app_metadata.to_pybytes())
            for batch, app_metadata in chunks(reader_of(server.location, ticket))
        ]


def chunks(reader: Reader) -> Iterator[tuple[pa.RecordBatch, Any]]:
    while True:
        try:
            chunk = reader.read_chunk()
        except StopIteration:
            return
        yield chunk


def frame(kind: int, payload: bytes = b"", flags: int = 0, stream: int = 0) -> bytes:
    return frames.frame(kind, flags, stream, payload)


PADDED = b"".join(
    data(bytes([i]) + part + bytes(i), frames.PADDED)
    for i, part in enumerate([WHOLE[:1], WHOLE[1:1], WHOLE[1:700], WHOLE[700:]])
)
BLOCK = headers()[frames.HEADER_BYTES :]
CONTINUED = (
    frame(frames.HEADERS, BLOCK[:3], stream=1)
    + frame(frames.CONTINUATION, BLOCK[3:7], stream=1)
    + frame(frames.CONTINUATION, BLOCK[7:], frames.END_HEADERS, 1)
)
WITH_PRIORITY = frame(
    frames.HEADERS,
    bytes([2]) + bytes(5) + BLOCK + bytes(2),
    frames.PADDED | frames.WITH_PRIORITY | frames.END_HEADERS,
    1,
)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(ANSWER, id="plain"),
        pytest.param(headers() + PADDED + trailers(), id="padded data"),
        pytest.param(CONTINUED + data(WHOLE) + trailers(), id="headers in three frames"),
        pytest.param(WITH_PRIORITY + data(WHOLE) + trailers(), id="padded headers with a priority"),
        pytest.param(headers([(":status", "103")]) + ANSWER, id="an interim response first"),
        pytest.param(headers() + data(b"") + data(WHOLE) + data(b"") + trailers(), id="empty data"),
        pytest.param(headers() + frame(0x77, b"x" * 100, 0xFF, 9) + data(WHOLE) + trailers(), id="an unknown frame"),
        pytest.param(frame(frames.PRIORITY, bytes(5), stream=3) + ANSWER, id="a priority"),
        pytest.param(frame(frames.WINDOW_UPDATE, bytes([0, 0, 1, 0])) + ANSWER, id="a window"),
        pytest.param(frame(frames.GOAWAY, struct.pack("!II", 1, 0)) + ANSWER, id="a goodbye after this stream"),
        pytest.param(headers() + data(WHOLE + flight_data(SCHEMA)) + trailers(), id="the schema again"),
        pytest.param(headers() + data(WHOLE + message(b"")) + trailers(), id="an empty message"),
        pytest.param(headers() + data(WHOLE + message(script.field(3, b"x"))) + trailers(), id="metadata alone"),
    ],
)
def test_valid_streams(answer: bytes) -> None:
    assert read(answering(answer)) == [(BATCH, b'{"busy_us":7}')]


def test_fields_in_any_order_and_unknown_ones() -> None:
    ipc = pa.ipc.read_message(BATCH.serialize())
    header, body = ipc.metadata.to_pybytes(), ipc.body.to_pybytes()
    kinds = {0: b"\x96\1", 1: bytes(8), 5: bytes(4)}
    unknown = b"".join(script.varint(9 << 3 | kind) + value for kind, value in kinds.items())
    swapped = message(script.field(1000, body) + unknown + script.field(1, b"descriptor") + script.field(2, header))
    assert read(answering(headers(), data(flight_data(SCHEMA) + swapped), trailers())) == [(BATCH, None)]


def test_any_cut_into_frames_and_packets(chance: Chance) -> None:
    batches = [rows_of(list(range(first, first + 40))) for first in range(0, 2000, 40)]
    whole = flight_data(SCHEMA) + b"".join(map(flight_data, batches))
    for _, rng in chance.schedules(8):
        longest = rng.choice([3, 50, 1000, 20_000])
        answer, at = [headers()], 0
        while at < len(whole):
            part = whole[at : at + rng.randint(1, longest)]
            answer.append(data(part))
            at += len(part)
        sent = b"".join([*answer, trailers()])
        assert [batch for batch, _ in read(lambda c, sent=sent, rng=rng: dribble(c, sent, rng))] == batches


def dribble(connection: Connection, sent: bytes, rng: random.Random) -> None:
    """Sends bytes in pieces of random size."""
    connection.request()
    at = 0
    while at < len(sent):
        size = rng.choice([1, 9, 500, 70_000, 300_000])
        connection.send(sent[at : at + size])
        at += size


def test_bodies_are_aligned() -> None:
    [(batch, _)] = read(answering(ANSWER))
    for column in batch.columns:
        assert [b.address % 8 for b in column.buffers() if b is not None] == [0] * sum(
            b is not None for b in column.buffers()
        )
    assert batch.column(0).buffers()[1].address % 64 == 0


def test_large_messages_of_one_frame() -> None:
    large = pa.record_batch({"x": pa.array(range(300_000))})
    sent = headers() + data(flight_data(large.schema) + flight_data(large)) + data(flight_data(large)) + trailers()
    assert [batch for batch, _ in read(answering(sent))] == [large, large]


def test_pings_and_settings_are_answered() -> None:
    def play(connection: Connection) -> None:
        connection.request()
        connection.send(frame(frames.PING, b"12345678"), headers())
        assert connection.until(frames.PING, frames.ACK) == b"12345678"
        connection.send(frame(frames.PING, b"an answer"[:8], frames.ACK), data(WHOLE), script.SETTINGS)
        connection.until(frames.SETTINGS, frames.ACK)
        connection.send(trailers())

    assert len(read(play)) == 1


def test_the_request() -> None:
    ticket = bytes(range(256)) * 200  # larger than one frame
    with Script(answering(ANSWER)) as server:
        reader_of(server.location, ticket).read_chunk()
    came = server.connections[0].frames
    [settings, window, head, *rest] = [f for f in came if f[:2] != (frames.SETTINGS, frames.ACK)]
    assert dict(struct.iter_unpack("!HI", settings[3])) == {1: 0, 2: 0, 4: (1 << 31) - 1, 5: (1 << 24) - 1}
    assert (window[0], struct.unpack("!I", window[3])[0] + 65_535) == (frames.WINDOW_UPDATE, WINDOW)
    fields = dict(script.hpack.decode(head[3]))
    assert fields[":path"] == "/arrow.flight.protocol.FlightService/DoGet"
    assert fields[":authority"] == server.location.removeprefix("grpc://")
    assert fields["name"] == "value"
    assert b"".join(payload for *_, payload in rest) == message(script.field(1, ticket))


def test_windows_are_restored() -> None:
    sent = flight_data(SCHEMA) + flight_data(BATCH) * 200

    def play(connection: Connection) -> None:
        connection.request()
        connection.send(headers())
        room = {0: WINDOW, 1: frames.WINDOW}  # for the connection and for the stream
        for at in range(0, len(sent), 10_000):
            part = data(bytes([3]) + sent[at : at + 10_000] + bytes(3), frames.PADDED)
            while min(room.values()) < len(part):
                kind, _, stream, payload = connection.frame()
                if kind == frames.WINDOW_UPDATE:
                    room[stream] += int.from_bytes(payload)
            room = {stream: left - len(part) + frames.HEADER_BYTES for stream, left in room.items()}
            assert room[0] <= WINDOW
            assert room[1] <= frames.WINDOW
            connection.send(part)
        connection.send(trailers())

    assert len(read(play)) == 200


STREAM = headers() + data(flight_data(SCHEMA))


@pytest.mark.parametrize(
    ("answer", "code", "message"),
    [
        (headers() + data(WHOLE[:-9]) + trailers(), "INTERNAL", "ends in the middle of a message"),
        (headers() + data(flight_data(SCHEMA), frames.END_STREAM), "INTERNAL", "without a status"),
        (headers() + trailers(), "INTERNAL", "without a schema"),
        (headers() + data(flight_data(BATCH)) + trailers(), "INTERNAL", "before the schema"),
        (STREAM + data(message(flight_data(BATCH)[5:], 1)), "UNIMPLEMENTED", "a compressed message"),
        (STREAM + data(message(script.field(2, b"x" * 30)[:-1])), "INTERNAL", "a field of 30 bytes in a message"),
        (STREAM + data(message(b"\x83" * 11)), "INTERNAL", "more than 64 bits"),
        (STREAM + data(message(b"\x13")), "INTERNAL", "wire type 3"),
        (STREAM + data(message(b"\x80")), "INTERNAL", "in the middle of a field"),
        (STREAM + data(message(script.varint(1000 << 3 | 2) + script.varint(1 << 60))), "INTERNAL", "that has 0 left"),
        (STREAM + data(b"x", stream=3), "INTERNAL", "DATA on stream 3"),
        (data(WHOLE), "INTERNAL", "before its headers"),
        (STREAM + data(b"\5abc", frames.PADDED), "INTERNAL", "5 bytes of padding"),
        (frame(frames.HEADERS, b"\x09abc", frames.PADDED | frames.END_HEADERS, 1), "INTERNAL", "9 bytes of padding"),
        (frame(frames.HEADERS, b"\xbf", frames.END_HEADERS, 1), "INTERNAL", "HPACK: index 63"),
        (frame(frames.HEADERS, BLOCK, 0, 1) + data(b""), "INTERNAL", "broken off"),
        (frame(frames.HEADERS, BLOCK, frames.END_HEADERS, 3), "INTERNAL", "HEADERS on stream 3"),
        (frame(frames.CONTINUATION, BLOCK, frames.END_HEADERS, 1), "INTERNAL", "kind 9 out of place"),
        (frame(frames.PUSH_PROMISE, bytes(4), stream=1), "INTERNAL", "kind 5 out of place"),
        (frame(frames.SETTINGS, bytes(6 << 18)), "INTERNAL", "a frame of kind 4"),
        (STREAM + frame(frames.RST_STREAM, b"", stream=1), "INTERNAL", "want 4 or more"),
        (STREAM + frame(frames.RST_STREAM, struct.pack("!I", 2), stream=1), "INTERNAL", "INTERNAL_ERROR"),
        (STREAM + frame(frames.RST_STREAM, struct.pack("!I", 7), stream=1), "UNAVAILABLE", "REFUSED_STREAM"),
        (STREAM + frame(frames.RST_STREAM, struct.pack("!I", 8), stream=1), "CANCELLED", "CANCEL"),
        (STREAM + frame(frames.RST_STREAM, struct.pack("!I", 11), stream=1), "RESOURCE_EXHAUSTED", "CALM"),
        (STREAM + frame(frames.RST_STREAM, struct.pack("!I", 99), stream=1), "INTERNAL", "error 99"),
        (STREAM, "UNAVAILABLE", "the connection was closed"),
        (b"", "UNAVAILABLE", "the connection was closed"),
        (frame(frames.GOAWAY, struct.pack("!II", 0, 11) + b"calm"), "UNAVAILABLE", "ENHANCE_YOUR_CALM calm"),
        (STREAM + frame(frames.GOAWAY, struct.pack("!II", 1, 0) + b"drain"), "UNAVAILABLE", "NO_ERROR drain"),
        (headers([(":status", "503")]), "UNAVAILABLE", "HTTP status '503'"),
        (headers([(":status", "404"), ("content-type", "text/html")]), "UNIMPLEMENTED", "text/html"),
        (headers([(":status", "200"), ("content-type", "text/html")]), "UNKNOWN", "no gRPC server"),
        (headers() + trailers("what"), "UNKNOWN", "grpc-status 'what'"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n" * 9, "INTERNAL", "a frame of kind"),
    ],
)
def test_protocol_violations(answer: bytes, code: str, message: str) -> None:
    with Script(answering(answer)) as server, pytest.raises(CALL_ERRORS, match=message) as error:
        list(chunks(reader_of(server.location)))
    assert code_of(error.value) == code, error.value


@pytest.mark.parametrize("code", range(1, 18))
def test_status_is_what_pyarrow_makes_of_it(code: int) -> None:
    end = headers([*script.HEADERS, ("grpc-status", str(code)), ("grpc-message", "rows %e2%82%ac 50%25 of 3")], 0x5)
    with Script(answering(end)) as server:
        with pytest.raises(CALL_ERRORS) as ours:
            reader_of(server.location).read_chunk()
        with fl.connect(server.location) as client, pytest.raises(CALL_ERRORS) as theirs:
            client.do_get(fl.Ticket(b"ticket")).read_chunk()
    assert type(ours.value) is type(theirs.value)
    assert code_of(ours.value) == code_of(theirs.value)
    assert reason_of(ours.value) == reason_of(theirs.value) == "rows € 50% of 3"


def test_a_body_may_begin_anywhere() -> None:
    """The field before the body ends at, before and after the end of the first read (_FRONT in h2/message.py)."""
    metadata = [bytes(n) for n in range(_FRONT - 500, _FRONT + 50)]
    whole = flight_data(SCHEMA) + b"".join(flight_data(BATCH, one) for one in metadata)
    assert read(answering(headers(), data(whole), trailers())) == [(BATCH, one) for one in metadata]


def test_cancel_ends_a_read_that_waits() -> None:
    def play(connection: Connection) -> None:
        connection.request()
        connection.send(STREAM)
        begun.set()
        connection.drain()

    begun, ended = threading.Event(), list[BaseException]()
    with Script(play) as server:
        reader = reader_of(server.location)

        def wait() -> None:
            try:
                reader.read_chunk()
            except BaseException as error:
                ended.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        assert begun.wait(limit())
        reader.cancel()
        thread.join(limit())
        assert isinstance(ended[0], fl.FlightCancelledError)
        with pytest.raises(fl.FlightCancelledError):
            reader.read_chunk()


def test_a_silent_server_is_asked_and_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_SILENT_SECONDS", 0.2)
    with (
        Script(lambda connection: (connection.request(), connection.drain())) as server,  # pyright: ignore[reportArgumentType] - for its effects
        pytest.raises(fl.FlightUnavailableError, match=r"no sign of life for 0.4 s"),
    ):
        reader_of(server.location).read_chunk()
    assert [kind for kind, flags, *_ in server.connections[0].frames if not flags][-1] == frames.PING


def test_a_slow_server_that_answers_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def play(connection: Connection) -> None:
        connection.request()
        connection.send(STREAM)
        for _ in range(2):  # silent for longer than the client waits for an answer to its PING
            asked = connection.until(frames.PING, 0)
            connection.send(frame(frames.PING, asked, frames.ACK))
        connection.send(data(flight_data(BATCH)), trailers())

    for seconds in (1.0, 5.0, 25.0):  # a busy machine may exceed the short ones
        monkeypatch.setattr(connection, "_SILENT_SECONDS", seconds)
        with contextlib.suppress(fl.FlightUnavailableError):
            assert len(read(play)) == 1
            return
    pytest.fail("a server that answers is given up")


def test_a_ticket_that_is_too_long() -> None:
    with pytest.raises(pa.ArrowInvalid, match="70004 bytes does not fit"):
        reader_of("grpc://127.0.0.1:1", bytes(70_000)).read_chunk()
