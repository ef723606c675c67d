# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The h2 client reads the same batches from pyarrow's Flight server as pyarrow's client."""

from __future__ import annotations

import decimal
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as fl
import pytest
import trustme

from kubeflow_datacache import DataCache, RefusedError
from kubeflow_datacache.codes import CALL_ERRORS, code_of, reason_of

ROWS = 1000
NUMBERS = np.arange(ROWS)
PLAIN = pa.record_batch(
    {
        "int": pa.array(NUMBERS, mask=NUMBERS % 7 == 0),
        "bool": pa.array(NUMBERS % 3 == 0),
        "text": pa.array([None if i % 5 == 0 else f"row {i}" for i in range(ROWS)]),
        "list": pa.array([list(range(i % 4)) for i in range(ROWS)]),
        "struct": pa.array([{"a": i, "b": str(i)} for i in range(ROWS)]),
        "decimal": pa.array([decimal.Decimal(i) for i in range(ROWS)]),
        "fixed": pa.array([bytes([i % 256]) * 5 for i in range(ROWS)], pa.binary(5)),
        "view": pa.array([f"a longer text that is not inlined {i}" for i in range(ROWS)], pa.string_view()),
        "null": pa.nulls(ROWS),
    }
)
WORDS = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0]), pa.array(["a", "b"]))
OTHERS = pa.DictionaryArray.from_arrays(pa.array([1, 1, 0]), pa.array(["c", "d"]))

Batches = list[pa.RecordBatch]


def batches(**columns: pa.Array) -> Batches:
    return [pa.record_batch(columns)]


STREAMS: dict[str, Batches] = {
    "every type": [PLAIN, PLAIN.slice(3, 200), PLAIN.slice(0, 0), PLAIN],
    "one row each": [PLAIN.slice(i, 1) for i in range(100)],
    "large": batches(x=pa.array(np.arange(3_000_000))) * 2,
    "many columns": [pa.record_batch({f"column {i}": pa.array([i]) for i in range(2000)})],
    "no rows": [],
    "no columns": [pa.RecordBatch.from_struct_array(pa.array([{}, {}], pa.struct([])))],
    "dictionaries": batches(word=WORDS) * 3,
    "replaced dictionaries": batches(word=WORDS) + batches(word=OTHERS),
    "a dictionary in a list": batches(words=pa.ListArray.from_arrays([0, 1, 3], WORDS)),
}
SCHEMAS = {name: parts[0].schema if parts else PLAIN.schema for name, parts in STREAMS.items()}
NONE: Any = "http"
ERRORS = [
    fl.FlightUnavailableError("loading 43%"),
    fl.FlightUnauthenticatedError("no token"),
    fl.FlightUnauthorizedError("not you"),
    fl.FlightInternalError("broken: 50 % of € 3"),
    fl.FlightTimedOutError("late"),
    fl.FlightCancelledError("gone"),
    pa.ArrowInvalid("bad ticket"),
    pa.ArrowKeyError("no such table"),
    pa.ArrowNotImplementedError("not here"),
]


class Server(fl.FlightServerBase):  # pyright: ignore[reportUntypedBaseClass]
    """Serves STREAMS by name; "name/codec" compresses; "error/i" raises ERRORS[i], "error/i late" after a batch."""

    def do_get(self, context: fl.ServerCallContext, ticket: fl.Ticket) -> fl.FlightDataStream:
        """A stream."""
        del context
        name, _, more = ticket.ticket.decode().partition("/")
        if name == "error":
            number, _, late = more.partition(" ")
            if not late:
                raise ERRORS[int(number)]
            return fl.GeneratorStream(PLAIN.schema, _failing(ERRORS[int(number)]))
        options = pa.ipc.IpcWriteOptions(compression=more or None)
        if "dictionar" in name:  # a GeneratorStream does not send dictionaries
            return fl.RecordBatchStream(pa.RecordBatchReader.from_batches(SCHEMAS[name], STREAMS[name]), options)
        parts = ((part, f"{i}".encode()) for i, part in enumerate(STREAMS[name]))
        return fl.GeneratorStream(SCHEMAS[name], parts, options)


def _failing(error: Exception) -> Iterator[pa.RecordBatch]:
    yield PLAIN
    raise error


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with Server("grpc://127.0.0.1:0") as server:
        yield server.port


def read(cache: DataCache, location: str, ticket: str) -> list[tuple[pa.RecordBatch, bytes]]:
    """All batches of a stream with their app_metadata."""
    reader, out = cache.stream(location, ticket.encode(), 1 << 20), list[Any]()
    while True:
        try:
            batch, app_metadata = reader.read_chunk()
        except StopIteration:
            return out
        batch.validate(full=True)
        out.append((batch, app_metadata.to_pybytes() if app_metadata is not None else b""))


def both(port: int) -> tuple[DataCache, DataCache]:
    endpoint = f"grpc://127.0.0.1:{port}"
    return DataCache(endpoint, transport="h2"), DataCache(endpoint, transport="grpc")


@pytest.mark.parametrize(("name", "codec"), list(itertools.product(STREAMS, ["", "lz4", "zstd"])))
def test_the_same_as_pyarrow(port: int, name: str, codec: str) -> None:
    ours, theirs = (read(cache, cache.endpoint, f"{name}/{codec}") for cache in both(port))
    assert [app_metadata for _, app_metadata in ours] == [app_metadata for _, app_metadata in theirs]
    assert [batch for batch, _ in ours] == [batch for batch, _ in theirs] == STREAMS[name]
    assert all(batch.schema.equals(SCHEMAS[name], check_metadata=True) for batch, _ in ours)


@pytest.mark.parametrize("when", ["", " late"])
@pytest.mark.parametrize("number", range(len(ERRORS)), ids=lambda i: type(ERRORS[i]).__name__)
def test_errors_are_the_same_as_pyarrow_s(port: int, number: int, when: str) -> None:
    raised: list[BaseException] = []
    for cache in both(port):
        with pytest.raises(CALL_ERRORS) as error:
            read(cache, cache.endpoint, f"error/{number}{when}")
        raised.append(error.value)
    ours, theirs = raised
    assert type(ours) is type(theirs)
    assert code_of(ours) == code_of(theirs)
    assert str(ERRORS[number]) in reason_of(ours)


@pytest.mark.parametrize("name", ["every type", "large", "dictionaries"])
def test_tls(name: str) -> None:
    ca = trustme.CA()
    certificate, roots = ca.issue_cert("127.0.0.1", "localhost"), ca.cert_pem.bytes()
    pair = (certificate.cert_chain_pems[0].bytes().decode(), certificate.private_key_pem.bytes().decode())
    with Server("grpc+tls://127.0.0.1:0", tls_certificates=[pair]) as server:
        location = f"grpc+tls://localhost:{server.port}"
        with DataCache(location, tls_roots=roots) as cache:
            assert [batch for batch, _ in read(cache, location, f"{name}/")] == STREAMS[name]
        with (
            DataCache(location) as stranger,
            pytest.raises(RefusedError, match="certificate was not accepted"),
        ):
            read(stranger, location, f"{name}/")


def test_ipv6() -> None:
    try:
        server = Server("grpc://[::1]:0")
    except (pa.ArrowException, OSError):
        pytest.skip("this machine has no IPv6")
    with server:
        location = f"grpc://[::1]:{server.port}"
        assert len(read(DataCache(location), location, "every type/")) == len(STREAMS["every type"])


def test_batches_outlive_their_stream(port: int) -> None:
    kept = [batch for batch, _ in read(both(port)[0], f"grpc://127.0.0.1:{port}", "every type/")]
    others = [read(both(port)[0], f"grpc://127.0.0.1:{port}", "large/") for _ in range(3)]
    assert kept == STREAMS["every type"]
    assert len(others) == 3


def test_many_streams_at_once(port: int) -> None:
    cache, _ = both(port)
    names = list(STREAMS) * 3
    with ThreadPoolExecutor(len(names)) as pool:
        got = list(pool.map(lambda name: [batch for batch, _ in read(cache, cache.endpoint, f"{name}/")], names))
    assert got == [STREAMS[name] for name in names]


@pytest.mark.parametrize(
    ("make", "want"),
    [
        (lambda: DataCache("grpc://h:1", transport=NONE), r"transport = 'http': want one of h2, grpc"),
        (lambda: DataCache.from_env({"TRAIN_JOB_NAME": "a", "DATACACHE_TRANSPORT": "x"}), r"transport = 'x'"),
    ],
)
def test_unknown_transports_are_rejected(make: Callable[[], DataCache], want: str) -> None:
    with pytest.raises(ValueError, match=want):
        make()
