# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tables read through the object cache: real processes, a real MinIO, and MinIO's count of bytes sent."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from client import Client
from lake import Lake, Made
from server import Cache, s3_environment
from stores import BUCKET, minio

from kit.deadline import Wait, eventually, limit, pause
from kit.ports import free_port

_FILES = 5
_MEGABYTES = int(os.environ.get("OBJECTCACHE_MB", "80"))
_ROWS = _MEGABYTES * 1_000_000 // (32 * _FILES)  # rows per file, of 32 incompressible bytes each


def _read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=limit()) as answer:
        return answer.read().decode()


def _metric(text: str, name: str) -> float:
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.split("{")[0].split(" ")[0] == name)


@dataclass
class Origin:
    """A MinIO with one table."""

    table: Made
    url: str
    told: float = 0

    def sent(self, at_least: float = 0) -> float:
        """The bytes that MinIO has sent since the last call; waits until its metric is final."""
        wait, last = Wait(), -1.0
        while (now := self._metric()) != last or now - self.told < at_least:
            assert not wait.over(), f"MinIO says that it has sent {now - self.told} bytes, want {at_least}"
            last = now
            pause(11)  # MinIO's metrics are up to 10 s old
        since, self.told = last - self.told, last
        return since

    def _metric(self) -> float:
        return _metric(_read(f"{self.url}/minio/v2/metrics/node"), "minio_s3_traffic_sent_bytes")

    def size(self) -> int:
        """Bytes of the table's data files."""
        return sum(task.file.file_size_in_bytes for task in self.table.open().scan().plan_files())


def _random(seed: int) -> pa.Table:
    numbers = np.random.default_rng(seed)
    return pa.table({name: numbers.integers(-(2**62), 2**62, _ROWS) for name in ("a", "b", "c", "d")})


@pytest.fixture(scope="module")
def origin(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Origin]:
    """A MinIO for these tests only, so that its metric counts only their reads."""
    binary = request.config.getoption("--minio")
    if binary is None:
        pytest.skip("no --minio given: run 'make test-conformance'")
    folder = tmp_path_factory.mktemp("minio-of-object-cache")
    with minio(binary.resolve(), folder) as properties:
        lake = Lake(folder, f"s3://{BUCKET}/warehouse", properties)
        table = lake.create("random", _random(0).schema, [_random(seed) for seed in range(_FILES)])
        yield Origin(lake.pin("random", table), properties["s3.endpoint"])


class ObjectCaches:
    """Several object caches that divide the keys among them."""

    def __init__(self, binary: Path, folder: Path, names: list[str]) -> None:
        self.token = folder / "token"
        self.token.write_text("secret\n")
        (folder / "tokens").write_text("secret team\n")
        bucket = {"Name": "tables", "BucketQuota": "8Gi", "AllowNamespaces": ["team"]}
        (folder / "buckets.json").write_text(json.dumps({"TotalLimit": "8Gi", "Bucket": [bucket]}))
        addresses = {name: f"127.0.0.1:{free_port()}" for name in names}
        peers = [word for name in names for word in ("--peer", f"{name}={addresses[name]}")]
        self.urls = [f"http://{address}" for address in addresses.values()]
        self.watched: list[str] = []
        self.processes: list[subprocess.Popen[bytes]] = []
        for name in names:
            self.watched.append(f"http://127.0.0.1:{free_port()}")
            flags = ["--standalone", "--tokens", folder / "tokens", "--buckets", folder / "buckets.json", *peers]
            # The disk may be full of other things.
            place = ["--dir", folder / name, "--min-free", "0", "--name", name, "--listen", addresses[name]]
            watch = ["--http", self.watched[-1].removeprefix("http://")]
            self.processes.append(subprocess.Popen([binary, *flags, *place, *watch]))
        for url in self.watched:
            _until_ready(url)

    def flags(self) -> list[str]:
        """The flags that make a cache read through the first of them."""
        bucket = ["--object-cache-bucket", "tables", "--object-cache-timeout", "2m"]  # tolerates a busy machine
        return ["--object-cache", self.urls[0], *bucket, "--object-cache-token-file", str(self.token)]

    def metric(self, index: int, name: str) -> float:
        """A metric of one object cache."""
        return _metric(_read(f"{self.watched[index]}/metrics"), f"datacache_objectcache_{name}")

    def close(self) -> None:
        """Stops all of them."""
        for process in self.processes:
            process.kill()
            process.wait()


def _until_ready(url: str) -> None:
    def ready() -> bool:
        try:
            _read(f"{url}/ready")
        except OSError:
            return False
        return True

    eventually(f"{url}/ready", ready)


@pytest.fixture
def object_caches(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ObjectCaches]:
    """Three object caches."""
    binary: Path = request.config.getoption("--server")  # pyright: ignore[reportAssignmentType]
    caches = ObjectCaches(binary.resolve().with_name("objectcache"), tmp_path, ["one", "two", "three"])
    yield caches
    caches.close()


@dataclass
class Load:
    """The result of one load, and the bytes read from the bucket according to the cache's metric and to MinIO."""

    rows: pa.Table
    counted: float
    sent: float


@pytest.mark.night
def test_a_second_load_reads_nothing_from_the_bucket(
    origin: Origin,
    object_caches: ObjectCaches,
    private: Callable[..., Cache],
    connect: Callable[[Cache], Client],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Loads the table three times: with empty object caches, with full ones, and after one of the three was lost.

    The table has 80 MB, or OBJECTCACHE_MB; prints what each load read.
    """
    size = origin.size()
    assert size >= 32 * _ROWS * _FILES
    origin.sent()  # sent to the writer of the table, and to this test

    def load(what: str) -> Load:
        source = ["--metadata", origin.table.metadata, *object_caches.flags()]
        cache = private(source, env=s3_environment(origin.table.properties))
        cache.wait("Ready")
        rows = connect(cache).table()
        counted = _metric(cache.get("/metrics")[1], "datacache_load_read_bytes_total")
        cache.stop()
        sent = origin.sent(at_least=counted)
        with capsys.disabled():
            print(f"\n{size / 1e6:.0f} MB through {what}:", end=" ")
            print(f"{counted:.0f} bytes ({counted / size:.4%}) from the bucket, {sent:.0f} by MinIO's count", end="")
        return Load(rows, counted, sent)

    first = load("three empty object caches")
    assert first.rows.num_rows == _FILES * _ROWS
    assert size <= first.counted < 1.1 * size
    assert size <= first.sent < 1.1 * size

    second = load("three full ones")
    assert second.rows.equals(first.rows)
    assert second.counted < 0.01 * size
    assert second.sent < 0.01 * size

    lost = object_caches.metric(2, "bucket_bytes")
    object_caches.processes[2].kill()
    object_caches.processes[2].wait()
    third = load(f"two of them, the third with {lost / size:.2%} being lost")
    assert third.rows.equals(first.rows)
    # Some lost bytes are read from the bucket twice. A file's end is read with the footer and again with the last row
    # group. Both data nodes read the row group that is split between them: without an offset index each needs all of
    # it, and in this table a row group is a whole file (ADR 14).
    twice = 0.05 * size + size / _FILES
    assert third.counted < lost + twice
    assert third.sent < lost + twice

    for one in (first, second, third):
        assert abs(one.counted - one.sent) < 0.01 * size
