# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Servers that the tests start for caches: MinIO (S3) and Apache Iceberg's REST catalog, both on loopback."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.fs

from kit.deadline import eventually
from kit.ports import free_port
from kit.process import Process, lasting

BUCKET = "bucket"


@contextlib.contextmanager
def minio(binary: Path, folder: Path, versions: bool = False) -> Iterator[dict[str, str]]:
    """Runs MinIO with one bucket, which keeps all versions of objects or not; yields pyiceberg's properties for it."""
    address = f"127.0.0.1:{free_port()}"
    user, password = "conformance", "a secret of the tests"
    environment = {
        **os.environ,
        "MINIO_ROOT_USER": user,
        "MINIO_ROOT_PASSWORD": password,
        "MINIO_BROWSER": "off",
        "MINIO_UPDATE": "off",
        "MINIO_PROMETHEUS_AUTH_TYPE": "public",
    }
    command = [binary, "server", "--quiet", "--address", address, folder / "data"]
    with _running(command, folder / "minio.log", f"http://{address}/minio/health/live", environment):
        properties = {
            "s3.endpoint": f"http://{address}",
            "s3.access-key-id": user,
            "s3.secret-access-key": password,
            "s3.region": "us-east-1",
        }
        store = pyarrow.fs.S3FileSystem(
            access_key=user, secret_key=password, endpoint_override=f"http://{address}", region="us-east-1",
            allow_bucket_creation=True,
        )  # fmt: skip
        store.create_dir(BUCKET)
        if versions:
            _keep_versions(address, user, password)
        yield properties


def _keep_versions(address: str, user: str, password: str) -> None:
    """Turns versioning on for the bucket, with a request signed by AWS Signature Version 4."""
    body = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    scope, content = f"{now[:8]}/us-east-1/s3/aws4_request", hashlib.sha256(body).hexdigest()
    names = "host;x-amz-content-sha256;x-amz-date"
    headers = f"host:{address}\nx-amz-content-sha256:{content}\nx-amz-date:{now}\n"
    canonical = f"PUT\n/{BUCKET}\nversioning=\n{headers}\n{names}\n{content}"
    to_sign = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = f"AWS4{password}".encode()
    for part in [*scope.split("/"), to_sign]:
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    sent = {
        "x-amz-content-sha256": content,
        "x-amz-date": now,
        "Authorization": f"AWS4-HMAC-SHA256 Credential={user}/{scope}, SignedHeaders={names}, Signature={key.hex()}",
    }
    request = urllib.request.Request(f"http://{address}/{BUCKET}?versioning=", body, sent, method="PUT")
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status == 200


@contextlib.contextmanager
def rest_catalog(jars: Path, folder: Path) -> Iterator[str]:
    """Runs Apache Iceberg's REST catalog with a warehouse in the folder; yields its URI."""
    port = free_port()
    environment = {
        **os.environ,
        "CATALOG_REST_PORT": str(port),
        "CATALOG_URI": f"jdbc:sqlite:{folder}/catalog.db",
        "CATALOG_WAREHOUSE": f"file://{folder}/warehouse",
    }
    command = ["java", "-Xmx256m", "-cp", f"{jars}/*", "org.apache.iceberg.rest.RESTCatalogServer"]
    uri = f"http://127.0.0.1:{port}"
    with _running(command, folder / "catalog.log", f"{uri}/v1/config", environment):
        yield uri


@contextlib.contextmanager
def _running(command: Sequence[str | Path], log: Path, health: str, environment: Mapping[str, str]) -> Iterator[None]:
    """Runs a server during the with block; waits until its health page answers."""
    server = Process(log.stem, command, log, environment)
    lasting.add(server.pid)
    try:
        eventually(f"an answer on {health}", lambda: _answers(server, health))
        yield
    finally:
        server.kill()
        server.wait()


def _answers(server: Process, health: str) -> bool:
    server.check()
    with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
        urllib.request.urlopen(health, timeout=5).close()
        return True
    return False
