# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""DataCache.local: a server that lives as long as processes use it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kit.deadline import eventually
from small import ROWS, small_table

from kubeflow_datacache import CacheFailedError, DataCache, UnreachableError

# Prints the server's address and the number of rows of an epoch, also in a forked child, which outlives its parent.
SCRIPT = """
import os, sys
from kubeflow_datacache import DataCache

program, path, what = sys.argv[1:]
cache = DataCache.local(path, shared=what == "shared", program=program)
rows = lambda: sum(batch.num_rows for batch in cache.loader(global_batch_size=10, tail="keep"))
print(cache.endpoint, rows(), getattr(cache._server._process, "pid", 0), flush=True)
if what == "fork" and os.fork() == 0:
    sys.stdin.readline()
    print(rows(), flush=True)
    sys.stdin.readline()
    cache.close()
    os._exit(0)
if what == "fork":
    os._exit(0)
sys.stdin.readline()
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The metadata file of a small table."""
    return small_table(tmp_path_factory.mktemp("small"), ROWS).metadata


@contextlib.contextmanager
def user(server: Path, path: str, what: str) -> Generator[tuple[subprocess.Popen[str], str, int]]:
    """A process that uses a local cache, the address of its server, and the server's process if it started that."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "src")}
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, server, path, what],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        try:
            endpoint, rows, pid = said(process).split()
            assert int(rows) == ROWS
            yield process, endpoint, int(pid)
        finally:
            process.kill()


def said(process: subprocess.Popen[str]) -> str:
    """The next line that a process prints."""
    assert process.stdout is not None
    return process.stdout.readline()


def tell(process: subprocess.Popen[str]) -> None:
    """Lets a process go on."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def lives(endpoint: str) -> bool:
    """Whether a server answers."""
    try:
        return bool(DataCache(endpoint, retry_seconds=0).status())
    except UnreachableError:
        return False


def wait_for_end(endpoint: str) -> None:
    """Waits until a server has ended."""
    eventually(f"the end of {endpoint}", lambda: not lives(endpoint))


def test_a_cache_for_a_with_block(server: Path, path: str) -> None:
    with DataCache.local(Path(path.removeprefix("file://")), program=server, nodes=2, columns=["id"]) as cache:
        assert len(cache) == ROWS
        assert cache.schema.names == ["id"]
        assert len(cache.status()["nodes"]) == 2
    assert not lives(cache.endpoint)


def test_a_folder_of_parquet_files(server: Path, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": range(100)}), tmp_path / "part-0.parquet")
    with DataCache.local(tmp_path, program=server) as cache:
        assert cache.head(100).to_pydict() == {"id": list(range(100))}


def test_the_server_ends_with_a_killed_process(server: Path, path: str) -> None:
    with user(server, path, "own") as (process, endpoint, _):
        process.send_signal(signal.SIGKILL)
        process.wait()
        wait_for_end(endpoint)


def test_a_forked_child_keeps_the_server(server: Path, path: str) -> None:
    with user(server, path, "fork") as (process, endpoint, _):
        process.wait()
        tell(process)
        assert said(process) == f"{ROWS}\n", "the child reads after its parent has ended"
        assert lives(endpoint)
        tell(process)
        wait_for_end(endpoint)


def test_processes_share_a_server(server: Path, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with user(server, path, "shared") as (first, endpoint, _), user(server, path, "shared") as (second, same, pid):
        assert (same, pid) == (endpoint, 0)
        with user(server, path, "own") as (_, own, _):
            assert own != endpoint
        pq.write_table(pa.table({"id": range(100)}), tmp_path / "other.parquet")
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        with DataCache.local(tmp_path / "other.parquet", shared=True, program=server) as other:
            assert (len(other), other.endpoint == endpoint) == (100, False), "another table has a server of its own"
        tell(first)
        first.wait()
        assert lives(endpoint), "the second process uses it"
        second.kill()
        second.wait()
        wait_for_end(endpoint)
    with user(server, path, "shared") as (_, again, pid):
        assert again != endpoint
        os.kill(pid, signal.SIGKILL)
        with user(server, path, "shared") as (_, _, after):
            assert after != again, "a server that was killed is replaced"


@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
def test_what_is_wrong_is_said_at_once(
    shared: bool, server: Path, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(CacheFailedError, match=r"/no/such/1.metadata.json: not found"):
        DataCache.local("/no/such/1.metadata.json", shared=shared, program=server)
    with pytest.raises(CacheFailedError, match="nope"):
        DataCache.local(path, columns=["id", "nope"], shared=shared, program=server)
    with pytest.raises(ValueError, match="unknown flag: --colums"):
        DataCache.local(path, colums=["id"], shared=shared, program=server)
