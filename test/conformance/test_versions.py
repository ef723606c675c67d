# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Objects of a table overwritten in a bucket that keeps versions: a file's rows are all of one version."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from client import Client, metadata
from lake import Lake, Made
from server import Cache, s3_environment
from stores import BUCKET, minio

Connect = Callable[[Cache], Client]

ROWS, GROUP = 4000, 100


@pytest.fixture(scope="module")
def lake(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """A lakehouse in such a bucket."""
    binary = request.config.getoption("--minio")
    if binary is None:
        pytest.skip("no --minio given: run 'make test-conformance'")
    folder = tmp_path_factory.mktemp("versions")
    with minio(binary.resolve(), folder, versions=True) as properties:
        yield Lake(folder, f"s3://{BUCKET}/warehouse", properties)


def content(version: int) -> bytes:
    """A file whose rows all name its version. Every version has as many bytes."""
    out = io.BytesIO()
    rows = {"id": pa.array(range(ROWS), pa.int64()), "version": pa.array([version] * ROWS, pa.int64())}
    pq.write_table(pa.table(rows), out, compression="none", use_dictionary=False, row_group_size=GROUP)
    return out.getvalue()


@pytest.fixture
def made(lake: Lake, request: pytest.FixtureRequest) -> tuple[Made, list[str]]:
    """A table of three such files, and these."""
    name = request.node.name.split("[")[0]
    uris = [lake.write(f"{name}-{i}.parquet", content(0)) for i in range(3)]
    table = lake.create(name, pa.schema([("id", pa.int64()), ("version", pa.int64())]))
    table.add_files(uris)
    return lake.pin(name, table), uris


def overwrite(lake: Lake, uri: str, version: int) -> None:
    """Puts another version in a file's place."""
    lake.write(uri.rsplit("/", 1)[1], content(version))


@pytest.fixture(params=["bucket", "disk"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    """The lakehouse in the bucket, or one on the local disk."""
    return request.getfixturevalue("lake") if request.param == "bucket" else Lake(tmp_path)


def test_overwritten_between_two_caches(place: Lake, private: Callable[..., Cache], connect: Connect) -> None:
    """The fingerprint in a loader's state is that of the rows: it outlives every process, but not another version."""
    uri = place.write("between.parquet", content(0))
    table = place.create("between", pa.schema([("id", pa.int64()), ("version", pa.int64())]))
    table.add_files([uri])
    metadata_file = place.pin("between", table)

    def dataset() -> dict[str, Any]:
        cache = private(["--metadata", metadata_file.metadata], env=s3_environment(place.properties))
        cache.wait("Ready")
        served = metadata(connect(cache).path(0, 1))["dataset"]
        cache.stop()
        return served

    before = dataset()
    assert dataset() == before
    overwrite(place, uri, 1)
    after = dataset()
    assert {**after, "fingerprint": before["fingerprint"]} == before
    assert after["fingerprint"] != before["fingerprint"]


def test_overwritten_while_caches_load(
    lake: Lake, made: tuple[Made, list[str]], private: Callable[..., Cache], connect: Connect
) -> None:
    table, uris = made
    done = threading.Event()

    def overwrite_all() -> None:
        version = 1
        while not done.wait(0.01):
            overwrite(lake, uris[version % 3], version)
            version += 1

    writer = threading.Thread(target=overwrite_all)
    writer.start()
    served = 0
    try:
        for nodes in (1, 2, 3, 1, 2, 3):
            cache = private(["--metadata", table.metadata], nodes=nodes, env=s3_environment(table.properties))
            status = cache.wait("Ready", "Failed")
            if status["state"] == "Ready":
                served += 1
                check_versions(connect(cache).table())
            else:
                assert "changed since the table was planned" in status["reason"]
            cache.stop()
    finally:
        done.set()
        writer.join()
    cache = private(["--metadata", table.metadata], env=s3_environment(table.properties))
    cache.wait("Ready")
    check_versions(connect(cache).table())


def check_versions(rows: pa.Table) -> None:
    """Asserts that every file is there, with all its rows of one version."""
    ids, versions = rows.column("id").to_pylist(), rows.column("version").to_pylist()
    assert ids == list(range(ROWS)) * 3
    for first in range(0, 3 * ROWS, ROWS):
        assert len(set(versions[first : first + ROWS])) == 1, (
            f"rows of {set(versions[first : first + ROWS])} in one file"
        )


def test_an_overwritten_file_is_refused_by_a_node_that_restarts(
    lake: Lake, made: tuple[Made, list[str]], private: Callable[..., Cache]
) -> None:
    table, uris = made
    cache = private(["--metadata", table.metadata], mode="cluster", nodes=1, env=s3_environment(table.properties))
    cache.wait("Ready")
    overwrite(lake, uris[1], 7)
    cache.restart("node-0")
    reason = cache.wait("Failed")["reason"]
    assert uris[1] in reason
    assert "changed since the table was planned" in reason
