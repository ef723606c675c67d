# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The starter of caches waits for the processes that run now, and finds what servers leave over."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lake import Made

from kit.caches import Cache
from kit.process import lasting, require_none_left

# Stands for a server: leaves something over, says so on its page, and exits with 0 when it is told to end.
_UNTIDY = """#!{python}
import mmap, os, pathlib, signal, subprocess, sys, tempfile
from http.server import BaseHTTPRequestHandler, HTTPServer

signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
{leaves}

class Page(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{{"state": "Ready", "rows": 0, "splits": {{}}, "nodes": []}}')

host, port = sys.argv[sys.argv.index("--http") + 1].split(":")
HTTPServer((host, int(port)), Page).serve_forever()
"""
_LEAVES = {
    "nothing": "",
    "a file": "pathlib.Path(tempfile.gettempdir(), 'spilled.tmp').touch()",
    "a process": "child = subprocess.Popen(['sleep', '987654'])\n"
    "pathlib.Path(__file__ + '.pid').write_text(str(child.pid))",
    "shared memory": "file = tempfile.NamedTemporaryFile(dir='/dev/shm', prefix='datacache-test-', delete=False)\n"
    "file.truncate(4096)\nmapped = mmap.mmap(file.fileno(), 4096)",
}


@pytest.fixture
def untidy(tmp_path: Path) -> Iterator[Callable[[str], Cache]]:
    """A function that starts a server that leaves something over, which is removed after the test."""

    def start(what: str) -> Cache:
        program = tmp_path / "server"
        program.write_text(_UNTIDY.format(python=sys.executable, leaves=_LEAVES[what]))
        program.chmod(0o700)
        cache = Cache(program, tmp_path / "cache", [])
        cache.start()
        cache.wait("Ready")
        return cache

    yield start
    if (left := tmp_path / "server.pid").exists():
        os.kill(int(left.read_text()), signal.SIGKILL)
    for path in Path("/dev/shm").glob("datacache-test-*"):
        path.unlink()


@pytest.mark.parametrize(
    ("what", "named"),
    [("a file", "/tmp/spilled.tmp"), ("a process", "sleep 987654"), ("shared memory", "/dev/shm/datacache-test-")],
)
def test_what_a_server_leaves_over_is_named(what: str, named: str, untidy: Callable[[str], Cache]) -> None:
    cache = untidy(what)
    with pytest.raises(AssertionError, match=f"left over: .*{named}"):
        cache.stop()


def test_a_tidy_server_stops(untidy: Callable[[str], Cache]) -> None:
    assert untidy("nothing").stop() == {"local": 0}


@pytest.mark.parametrize("name", ["node-1", "head"])
def test_a_status_from_before_a_restart_does_not_count(
    name: str, table: Callable[[str], Made], private: Callable[..., Cache]
) -> None:
    cache = private(["--metadata", table("plain").metadata], mode="cluster")

    def incarnations() -> list[str]:
        status = cache.wait("Ready")
        return [status["incarnation"], *(node["incarnation"] for node in status["nodes"])]

    before = incarnations()
    cache.restart(name)
    after = incarnations()
    at = cache.names.index(name)
    assert before[at] != after[at]
    assert before[:at] + before[at + 1 :] == after[:at] + after[at + 1 :]


def test_a_frozen_node_ends_when_it_is_told_to(table: Callable[[str], Made], private: Callable[..., Cache]) -> None:
    cache = private(["--metadata", table("one_file").metadata], mode="cluster")
    cache.wait("Ready")
    cache.freeze("node-0")
    assert set(cache.stop().values()) == {0}


def test_processes_that_a_module_leaves_over_are_named_and_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    child = subprocess.Popen(["sleep", "987654"])
    monkeypatch.setattr("kit.process.Wait.over", lambda _: True)
    with pytest.raises(AssertionError, match=f"test_this.py left processes over: {child.pid}: sleep 987654"):
        require_none_left("test_this.py", lasting)
    assert child.wait() == -signal.SIGKILL
    require_none_left("test_this.py", lasting)
