# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The same rows over S3: pyiceberg writes to a real MinIO, and the cache reads from it."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import folders
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest
from canon import difference, row_digests, rows_of
from client import Client
from filters import FILTERS
from lake import Lake, Made, Selection
from server import Cache, Caches, Mode, s3_environment
from stores import BUCKET, minio
from tables import BY_NAME

Connect = Callable[[Cache], Client]


@pytest.fixture(scope="session")
def bucket(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """A lakehouse in a bucket."""
    binary = request.config.getoption("--minio")
    if binary is None:
        pytest.skip("no --minio given: run 'make test-conformance'")
    folder = tmp_path_factory.mktemp("minio")
    with minio(binary.resolve(), folder) as properties:
        yield Lake(folder, f"s3://{BUCKET}/warehouse", properties)


@pytest.mark.parametrize("name", ["plain", "types", "many_files", "evolved", "by_bucket", "wide_values", "empty"])
def test_a_cache_serves_what_pyiceberg_scans(name: str, bucket: Lake, caches: Caches, connect: Connect) -> None:
    made = bucket.table(name, BY_NAME[name])
    assert made.metadata.startswith("s3://")
    assert difference(rows_of(connect(caches.of(made)).table()), rows_of(made.scan())) == ""


def test_separate_processes(bucket: Lake, caches: Caches, connect: Connect) -> None:
    made = bucket.table("plain", BY_NAME["plain"])
    got = connect(caches.of(made, mode="cluster", nodes=3)).table()
    assert got.equals(connect(caches.of(made)).table())


def test_a_filter_and_a_projection(bucket: Lake, caches: Caches, connect: Connect) -> None:
    made = bucket.table("plain", BY_NAME["plain"])
    selection = Selection(columns=("id", "name"), where=FILTERS[13].where)
    got = connect(caches.of(made, selection)).table()
    want = made.scan(columns=("id", "name"), where=FILTERS[13].expression)
    assert difference(rows_of(got), rows_of(want)) == ""


@pytest.mark.parametrize("name", ["names_in_byte_order", "left_out", "by_day"])
def test_a_folder_of_files(
    name: str, bucket: Lake, tmp_path: Path, private: Callable[..., Cache], connect: Connect
) -> None:
    folders.FOLDERS[name](tmp_path)
    given = bucket.properties
    store = pyarrow.fs.S3FileSystem(
        access_key=given["s3.access-key-id"], secret_key=given["s3.secret-access-key"], region=given["s3.region"],
        endpoint_override=given["s3.endpoint"],
    )  # fmt: skip
    pyarrow.fs.copy_files(str(tmp_path), f"{BUCKET}/folders/{name}", destination_filesystem=store)
    cache = private(["--files", f"s3://{BUCKET}/folders/{name}"], mode="cluster", env=s3_environment(given))
    cache.wait("Ready")
    got, want = connect(cache).table(), folders.scan(tmp_path)
    assert got.column_names == want.column_names
    assert row_digests(got) == row_digests(want)


def test_other_names_of_s3(bucket: Lake, private: Callable[..., Cache], connect: Connect) -> None:
    """Spark and Hadoop write s3a:// where others write s3://."""
    made = bucket.table("one_file", BY_NAME["one_file"])
    spelled = replace(made, metadata=made.metadata.replace("s3://", "s3a://"))
    cache = private(["--metadata", spelled.metadata], env=s3_environment(made.properties))
    cache.wait("Ready")
    assert connect(cache).table().num_rows == 777


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"s3.secret-access-key": "not the secret"}, ["SignatureDoesNotMatch", "denied", "permission", "403"]),
        ({"s3.access-key-id": "nobody"}, ["InvalidAccessKeyId", "denied", "permission", "403"]),
    ],
    ids=["wrong secret", "unknown key"],
)
def test_wrong_credentials_fail_the_cache_with_the_reason(
    change: dict[str, str], says: list[str], mode: Mode, bucket: Lake, private: Callable[..., Cache]
) -> None:
    made = bucket.table("one_file", BY_NAME["one_file"])
    check_failed(
        private(["--metadata", made.metadata], mode=mode, env=s3_environment({**made.properties, **change})), made, says
    )


def test_a_missing_bucket_or_object_fails_the_cache_with_its_name(bucket: Lake, private: Callable[..., Cache]) -> None:
    made = bucket.table("one_file", BY_NAME["one_file"])
    for uri in (made.metadata.replace(BUCKET, "no-such-bucket"), made.metadata.replace("/00001-", "/00002-")):
        gone = replace(made, metadata=uri)
        cache = private(["--metadata", uri], env=s3_environment(made.properties))
        check_failed(cache, gone, ["not exist", "not found", "NoSuch", "404"])


def test_an_object_replaced_by_as_many_bytes_is_refused(bucket: Lake, private: Callable[..., Cache]) -> None:
    rows = pa.table({"id": pa.array(range(1000), pa.int64())})

    def content(first: int) -> bytes:
        out = io.BytesIO()
        pq.write_table(pa.table({"id": pa.array(range(first, first + 1000), pa.int64())}), out, compression="none")
        return out.getvalue()

    before, after = content(0), content(1)
    assert len(before) == len(after)
    uri = bucket.write("replaced.parquet", before)
    table = bucket.create("replaced", rows.schema)
    table.add_files([uri])
    made = bucket.pin("replaced", table)
    cache = private(["--metadata", made.metadata], mode="cluster", nodes=1, env=s3_environment(made.properties))
    cache.wait("Ready")
    bucket.write("replaced.parquet", after)
    cache.restart("node-0")
    reason = cache.wait("Failed")["reason"]
    assert uri in reason
    assert "changed since the table was planned" in reason


def check_failed(cache: Cache, made: Made, says: list[str]) -> None:
    """Asserts that the cache is Failed and names the reason and the object. If it is more than one process, it still
    runs, and is not ready."""
    reason = cache.wait("Failed")["reason"]
    assert any(word.lower() in reason.lower() for word in says), reason
    assert made.metadata in reason
    if "local" not in cache.processes:
        assert cache.get("/ready")[0] == 503
        assert all(process.poll() is None for process in cache.processes.values())
