# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""TLS errors raise at once, proxies are ignored, and a frozen data node is detected."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest
import trustme
from kit.deadline import limit
from peer import Peer
from script import Connection, Script

from kubeflow_datacache import DataCache, RefusedError
from kubeflow_datacache.h2 import connection

AUTHORITY = trustme.CA()
PEM = AUTHORITY.cert_pem.bytes()


class Head(fl.FlightServerBase):  # pyright: ignore[reportUntypedBaseClass]
    """A head that reports a status."""

    def do_action(self, context: fl.ServerCallContext, action: fl.Action) -> list[Any]:
        """The status."""
        del context, action
        return [fl.Result(pa.py_buffer(b'{"state": "Ready"}'))]


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The port of a head with a certificate for localhost."""
    issued = AUTHORITY.issue_cert("localhost")
    pair = (issued.cert_chain_pems[0].bytes(), issued.private_key_pem.bytes())
    with Head("grpc+tls://127.0.0.1:0", tls_certificates=[pair]) as server:
        yield server.port


@pytest.mark.parametrize("kind", ["bytes", "text", "text path", "path"])
def test_roots_as_bytes_text_or_path(port: int, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "ca.pem"
    path.write_bytes(PEM)
    roots: Any = {"bytes": PEM, "text": PEM.decode(), "text path": str(path), "path": path}[kind]
    with DataCache(f"grpc+tls://localhost:{port}", tls_roots=roots) as cache:
        assert cache.status() == {"state": "Ready"}


def test_roots_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"tls_roots = '.*none.pem': want PEM, or the path"):
        DataCache("grpc+tls://localhost:1", tls_roots=tmp_path / "none.pem")


@pytest.mark.parametrize(
    ("location", "roots", "message"),
    [
        ("grpc+tls://localhost", None, "certificate was not accepted: .*tls_roots"),
        ("grpc+tls://localhost", trustme.CA().cert_pem.bytes(), "certificate was not accepted: .*tls_roots"),
        ("grpc+tls://127.0.0.1", PEM, "certificate was not accepted: .*127.0.0.1.*host name"),
        ("grpc://localhost", None, r"answers with TLS only: write grpc\+tls://"),
    ],
    ids=["unknown authority", "another authority", "another host", "plain against TLS"],
)
def test_permanent_tls_errors_raise_at_once(port: int, location: str, roots: bytes | None, message: str) -> None:
    with (
        DataCache(f"{location}:{port}", tls_roots=roots, retry_seconds=1e9) as cache,
        pytest.raises(RefusedError, match=message),
    ):
        cache.status()


def test_tls_against_plain(peer: Peer) -> None:
    endpoint = peer.endpoint.replace("grpc://", "grpc+tls://")
    with (
        DataCache(endpoint, retry_seconds=1e9) as cache,
        pytest.raises(RefusedError, match=r"without TLS .*: write grpc"),
    ):
        cache.status()


@pytest.mark.parametrize("transport", ["h2", "grpc"])
@pytest.mark.parametrize("name", ["http_proxy", "https_proxy", "grpc_proxy", "all_proxy"])
def test_proxies_are_not_asked(
    peer: Peer, connect: Callable[..., DataCache], monkeypatch: pytest.MonkeyPatch, name: str, transport: str
) -> None:
    asked = list[Connection]()
    with Script(asked.append) as proxy:
        address = proxy.location.replace("grpc://", "http://")
        for spelled in (name, name.upper()):
            monkeypatch.setenv(spelled, address)
        cache = connect(peer.endpoint, limit(), transport)
        assert cache.table(columns=["id"])[7] == {"id": 7}
    assert asked == []


def test_a_frozen_data_node_is_noticed_by_reads_by_index(
    peer: Peer, cache: DataCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_SILENT_SECONDS", 0.2)  # after twice this time, the node counts as lost
    rows, first = cache.table(columns=["id"]), list[int]()

    def freeze(connection: Connection) -> None:
        first.append(1)
        peer.data_port = peer.port  # the head's answer when asked again
        connection.request()
        connection.drain()  # until the client disconnects

    with Script(freeze) as frozen:
        peer.data_port = int(frozen.location.rpartition(":")[2])
        assert rows[5] == {"id": 5}
    assert first
