# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tokens, client certificates, roots and host names with both transports."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pyarrow.flight as fl
import pytest
import trustme
from server import Caches
from small import ROWS, small_table, steps_of

from kubeflow_datacache import DataCache, RefusedError, UnreachableError, World
from kubeflow_datacache.cache import Transport
from kubeflow_datacache.codes import CALL_ERRORS
from kubeflow_datacache.credentials import Credentials

CA = trustme.CA()
ROOTS = CA.cert_pem.bytes()
NAME = "cache.test"  # host name in the server's certificate; not a name of this machine
SERVER, CLIENT = CA.issue_cert(NAME), CA.issue_cert("trainer@example.com")
STRANGER = trustme.CA().issue_cert("trainer@example.com")
TRANSPORTS = get_args(Transport)


def pair(issued: trustme.LeafCert) -> tuple[bytes, bytes]:
    """A certificate and its key as PEM."""
    return issued.cert_chain_pems[0].bytes(), issued.private_key_pem.bytes()


class Header(fl.ServerMiddlewareFactory):  # pyright: ignore[reportUntypedBaseClass]
    """Records the method and the authorization header of each call."""

    def __init__(self) -> None:
        self.seen = list[tuple[str, str | None]]()

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> None:
        """Records a call."""
        self.seen.append((info.method.name, next(iter(headers.get("authorization", [])), None)))


class Server(fl.FlightServerBase):  # pyright: ignore[reportUntypedBaseClass]
    """A head that reports a status, and a data node that echoes its requests."""

    def do_action(self, context: fl.ServerCallContext, action: fl.Action) -> list[Any]:
        """The status."""
        del context, action
        return [fl.Result(pa.py_buffer(b'{"state": "Ready"}'))]

    def do_get(self, context: fl.ServerCallContext, ticket: fl.Ticket) -> Any:
        """Three rows."""
        del context, ticket
        return fl.RecordBatchStream(pa.table({"row": [1, 2, 3]}))

    def do_exchange(self, context: fl.ServerCallContext, descriptor: Any, reader: Any, writer: Any) -> None:
        """Echoes the request."""
        del context, descriptor
        writer.begin(reader.schema)
        writer.write_batch(reader.read_chunk().data)


@pytest.fixture
def header() -> Header:
    """The calls that the server received."""
    return Header()


@pytest.fixture
def plain(header: Header) -> Iterator[str]:
    """A server without TLS."""
    with Server("grpc://127.0.0.1:0", middleware={"header": header}) as server:
        yield f"grpc://127.0.0.1:{server.port}"


@pytest.fixture(scope="module")
def mutual() -> Iterator[str]:
    """A server that requires a client certificate."""
    with Server(
        "grpc+tls://127.0.0.1:0", tls_certificates=[pair(SERVER)], verify_client=True, root_certificates=ROOTS
    ) as server:
        yield f"grpc+tls://127.0.0.1:{server.port}"


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_token_goes_along_with_calls_to_the_head(plain: str, header: Header, transport: Transport) -> None:
    with DataCache(plain, transport=transport, token=lambda: "secret") as cache:
        cache.status()
        cache.stream(plain, b"rows", 1 << 20).read_chunk()
        exchange = cache.exchange(plain, b"rows")
        exchange.write(pa.record_batch({"row": [7]}))
        exchange.read()
        with contextlib.suppress(*CALL_ERRORS):  # the server may have closed it already
            exchange.close()
    assert header.seen == [("DO_ACTION", "Bearer secret"), ("DO_GET", None), ("DO_EXCHANGE", None)]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_token_s_file_is_read_anew(plain: str, header: Header, tmp_path: Path, transport: Transport) -> None:
    path = tmp_path / "token"
    path.write_text("first\n")
    with DataCache(plain, transport=transport, token=path) as cache:
        cache.status()
        path.write_text("second\n")
        cache.status()
    assert [token for _, token in header.seen] == ["Bearer first", "Bearer second"]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_no_token_no_header(plain: str, header: Header, transport: Transport) -> None:
    with DataCache(plain, transport=transport) as cache:
        cache.status()
    assert header.seen == [("DO_ACTION", None)]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_token_is_not_sent_in_plain_text(transport: Transport) -> None:
    with (
        DataCache("grpc://192.0.2.1:1", transport=transport, token=lambda: "secret") as cache,
        pytest.raises(RefusedError, match=r"token: grpc://192.0.2.1:1 is not reached by TLS"),
    ):
        cache.status()


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("kind", ["bytes", "text", "paths"])
def test_a_client_certificate(mutual: str, tmp_path: Path, kind: str, transport: Transport) -> None:
    certificate, key = pair(CLIENT)
    own: Any = {"tls_certificate": certificate, "tls_key": key}
    if kind == "text":
        own = {name: pem.decode() for name, pem in own.items()}
    if kind == "paths":
        for name, pem in own.items():
            (tmp_path / name).write_bytes(pem)
        own = {name: tmp_path / name for name in own}
    with DataCache(mutual, tls_roots=ROOTS, tls_hostname=NAME, transport=transport, **own) as cache:
        assert cache.status() == {"state": "Ready"}
        assert pickle.loads(pickle.dumps(cache)).status() == {"state": "Ready"}


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("issued", [None, STRANGER], ids=["none", "of another authority"])
def test_a_server_that_wants_another_certificate(
    mutual: str, issued: trustme.LeafCert | None, transport: Transport
) -> None:
    own: Any = dict(zip(("tls_certificate", "tls_key"), pair(issued), strict=True)) if issued else {}
    with (
        DataCache(mutual, tls_roots=ROOTS, tls_hostname=NAME, transport=transport, retry_seconds=0, **own) as cache,
        pytest.raises((RefusedError, UnreachableError)),
    ):
        cache.status()


def test_a_certificate_s_files_are_read_for_each_connection(mutual: str, tmp_path: Path) -> None:
    paths = [tmp_path / "certificate", tmp_path / "key"]

    def rotate(issued: trustme.LeafCert) -> None:
        for path, pem in zip(paths, pair(issued), strict=True):
            path.write_bytes(pem)

    rotate(STRANGER)
    with DataCache(
        mutual, tls_roots=ROOTS, tls_hostname=NAME, tls_certificate=paths[0], tls_key=paths[1], retry_seconds=0
    ) as cache:
        with pytest.raises((RefusedError, UnreachableError)):
            cache.status()
        rotate(CLIENT)
        assert cache.status() == {"state": "Ready"}


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_rows_of_a_real_cache_by_another_host_name(server: Path, tmp_path: Path, transport: Transport) -> None:
    flags = list[str]()
    own = CA.issue_cert(NAME, "127.0.0.1")  # the servers connect to each other by address
    for flag, pem in zip(("--tls-cert", "--tls-key", "--tls-ca"), (*pair(own), ROOTS), strict=True):
        (tmp_path / flag).write_bytes(pem)
        flags += [flag, str(tmp_path / flag)]
    caches = Caches(server, tmp_path / "logs")
    options: Any = {"global_batch_size": 32, "seed": 3, "shuffle": True, "clump": 1, "tail": "keep"}
    try:
        served = caches.of(small_table(tmp_path, ROWS), flags=flags).endpoint
        endpoint = f"grpc+tls://localhost:{served.rpartition(':')[2]}"
        environ = {"DATACACHE_ENDPOINT": endpoint, "DATACACHE_TRANSPORT": transport, "DATACACHE_TLS_HOSTNAME": NAME}
        with DataCache.from_env(environ, tls_roots=ROOTS, token=lambda: "nobody asks for it") as cache:
            loader = cache.loader(world=World(0, 1), **options)
            assert [batch.numpy()["id"].tolist() for batch in loader] == steps_of(options, 0)
        with (
            DataCache(
                endpoint, tls_roots=ROOTS, tls_hostname="other.test", transport=transport, retry_seconds=0
            ) as cache,
            pytest.raises((RefusedError, UnreachableError)),
        ):
            cache.status()
    finally:
        caches.close()


def test_the_environment_names_files(tmp_path: Path) -> None:
    for name, pem in zip(("certificate", "key"), pair(CLIENT), strict=True):
        (tmp_path / name).write_bytes(pem)
    (tmp_path / "roots").write_bytes(ROOTS)
    (tmp_path / "token").write_text("secret")
    environ = {
        "TRAIN_JOB_NAME": "job",
        "DATACACHE_TLS_ROOTS": str(tmp_path / "roots"),
        "DATACACHE_TLS_CERTIFICATE": str(tmp_path / "certificate"),
        "DATACACHE_TLS_KEY": str(tmp_path / "key"),
        "DATACACHE_TLS_HOSTNAME": NAME,
        "DATACACHE_TOKEN_FILE": str(tmp_path / "token"),
    }
    cache = DataCache.from_env(environ)
    assert cache.endpoint == "grpc+tls://job-cache-service:50051"
    credentials: Credentials = cache._credentials  # pyright: ignore[reportPrivateUsage]
    assert credentials.flight_arguments()["tls_root_certs"] == ROOTS
    assert credentials.hostname == NAME
    assert credentials.headers(cache.endpoint) == [("authorization", "Bearer secret")]
    assert set(credentials.flight_arguments()) == {"tls_root_certs", "cert_chain", "private_key", "override_hostname"}
    given = DataCache.from_env(environ, token=lambda: "mine")._credentials  # pyright: ignore[reportPrivateUsage]
    assert given.headers(cache.endpoint) == [("authorization", "Bearer mine")]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: {"token": "ey.secret"}, "token: want the path of a file that holds it, or a function"),
        (lambda: {"tls_certificate": pair(CLIENT)[0]}, "tls_certificate and tls_key go together"),
        (
            lambda: {"tls_certificate": pair(CLIENT)[0], "tls_key": pair(STRANGER)[1]},
            "tls_certificate, tls_key: want PEM of a certificate and of its private key",
        ),
        (lambda: {"tls_certificate": "/no.pem", "tls_key": "/no.pem"}, "tls_certificate, tls_key: want PEM"),
    ],
)
def test_what_is_refused_when_a_cache_is_made(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(ValueError, match=said) as error:
        DataCache("grpc+tls://localhost:1", **make())
    assert "secret" not in str(error.value)


def test_unknown_options_are_rejected() -> None:
    other: Any = {"tls_root": ROOTS}
    with pytest.raises(TypeError, match="tls_root is no parameter of a DataCache; there are tls_roots"):
        DataCache("grpc://localhost:1", **other)


@pytest.mark.parametrize("token", ["", "two\nlines", "caf\u00e9"])
def test_invalid_tokens_are_rejected(plain: str, token: str) -> None:
    with (
        DataCache(plain, token=lambda: token) as cache,
        pytest.raises(ValueError, match="token: want one line of printable ASCII"),
    ):
        cache.status()
