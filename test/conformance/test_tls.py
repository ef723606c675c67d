# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""TLS: with a certificate, locations are grpc+tls://, and the same client reads the same rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as fl
import pytest
import trustme
from client import path_descriptor
from lake import Made
from server import Cache, Caches, Mode

from kit.deadline import limit

Table = Callable[[str], Made]


@pytest.fixture(scope="session")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ca.pem, cert.pem and key.pem of a test CA."""
    folder = tmp_path_factory.mktemp("pem")
    ca = trustme.CA()
    server = ca.issue_cert("127.0.0.1", "localhost")
    ca.cert_pem.write_to_path(str(folder / "ca.pem"))
    server.cert_chain_pems[0].write_to_path(str(folder / "cert.pem"))
    server.private_key_pem.write_to_path(str(folder / "key.pem"))
    return folder


def test_rows_over_tls(pem: Path, mode: Mode, table: Table, caches: Caches, private: Callable[..., Cache]) -> None:
    made = table("plain")
    tls = {"TLS_CERT": str(pem / "cert.pem"), "TLS_KEY": str(pem / "key.pem"), "TLS_CA": str(pem / "ca.pem")}
    cache = private(["--metadata", made.metadata], mode=mode, env=tls)
    cache.wait("Ready")
    roots = (pem / "ca.pem").read_bytes()
    address = cache.endpoint.removeprefix("grpc://")
    with fl.connect(f"grpc+tls://{address}", tls_root_certs=roots) as head:
        info = head.get_flight_info(path_descriptor(0, 1))
        parts = [info.schema.empty_table()]
        for endpoint in info.endpoints:
            (location,) = endpoint.locations
            assert location.uri.startswith(b"grpc+tls://")
            with fl.connect(location, tls_root_certs=roots) as node:
                parts.append(node.do_get(endpoint.ticket).read_all())
    with caches.of(made).client() as plain:
        assert pa.concat_tables(parts).equals(plain.table())
    with fl.connect(f"grpc://{address}") as stranger, pytest.raises(fl.FlightUnavailableError):
        stranger.get_flight_info(path_descriptor(0, 1), fl.FlightCallOptions(timeout=limit()))
