# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Arrow's Java client: grpc-java with Netty, an HTTP/2 implementation independent of pyarrow's, Go's and nghttp2's."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from client import Client
from lake import Made
from readers import STATIC, Readers
from server import Cache, Caches, Mode

from kit.deadline import limit

PROGRAM = Path(__file__).with_name("java") / "FlightRead.java"
# JVM options that Arrow's Java requires: https://arrow.apache.org/docs/java/install.html
JVM = ["-Xmx512m", "--add-opens=java.base/java.nio=org.apache.arrow.memory.core,ALL-UNNAMED"]
SHARD = {"v": 1, "kind": "shard", "index": 0, "total": 1}
EPOCH = {"v": 1, "kind": "epoch", "seed": 5, "epoch": 2, "shuffle": True, "clump": 1, "global_batch": 100}
EPOCH |= {"tail": "keep", "rank": 0, "world": 1}
TAKE = {"v": 1, "kind": "take"}
# 4 MB in an 8-byte column: one message larger than a window of grpc-java.
ROW, TIMES = 3, 500_000


def streams(folder: Path, request: int) -> list[pa.Table]:
    """The rows that the program read from each endpoint of a request."""
    files = sorted(folder.glob(f"{request}-*.arrows"), key=lambda path: int(path.stem.partition("-")[2]))
    return [pa.ipc.open_stream(path.read_bytes()).read_all() for path in files]


def java(request: pytest.FixtureRequest, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the program."""
    jars = request.config.getoption("--java-flight")
    if jars is None:
        pytest.skip("no --java-flight given: run 'make test-conformance'")
    command = ["java", *JVM, "-cp", f"{jars}/*", str(PROGRAM), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=limit(), check=False)


@pytest.mark.parametrize("name", ["plain", "types"])
def test_java_reads_the_same_rows(
    name: str,
    mode: Mode,
    caches: Caches,
    table: Callable[[str], Made],
    connect: Callable[[Cache], Client],
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    client = connect(caches.of(table(name), mode=mode))
    whole = client.table()
    take = TAKE | {"columns": whole.column_names[:1]}
    asked = ["get", json.dumps(SHARD), "get", json.dumps(EPOCH), "take", json.dumps(take), str(ROW), str(TIMES)]
    done = java(request, client.endpoint, str(tmp_path), *asked)
    assert done.returncode == 0, done.stdout + done.stderr

    assert pa.concat_tables(streams(tmp_path, 0)).equals(whole)
    epoch = client.command(json.dumps(EPOCH).encode())
    for got, endpoint in zip(streams(tmp_path, 1), epoch.endpoints, strict=True):
        assert got.equals(client.stream(endpoint))
    (got,) = streams(tmp_path, 2)
    assert got.equals(whole.select(take["columns"]).take(pa.array([ROW] * TIMES)))


@pytest.mark.parametrize(("allowed", "token"), [("Anyone", None), ("Known", STATIC), ("Known", "made up")])
def test_java_by_tls(
    allowed: str,
    token: str | None,
    caches: Caches,
    table: Callable[[str], Made],
    private: Callable[..., Cache],
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    readers = Readers(tmp_path)
    readers.write(readers=allowed)
    (tmp_path / "ca.crt").write_bytes(readers.roots)
    cache = private(["--metadata", table("plain").metadata], env=readers.env)
    cache.wait("Ready")
    login = ["login", token] if token else []
    secure = cache.endpoint.replace("grpc://", "grpc+tls://")
    done = java(request, secure, str(tmp_path), "ca", str(tmp_path / "ca.crt"), *login, "get", json.dumps(SHARD))
    if token == "made up":
        assert done.returncode != 0
        assert "the token is not valid here" in done.stderr
        return
    assert done.returncode == 0, done.stdout + done.stderr
    with caches.of(table("plain")).client() as plain:
        assert pa.concat_tables(streams(tmp_path, 0)).equals(plain.table())
