# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The starter of caches waits for the processes that run now, and finds what servers leave over."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lake import Made

from kit.caches import Cache, Mode
from kit.process import lasting, require_none_left

# Stands for a server: leaves something over, shows the file of its role as its page, and exits with 0 on SIGTERM.
_UNTIDY = """#!{python}
import mmap, os, pathlib, signal, subprocess, sys, tempfile
from http.server import BaseHTTPRequestHandler, HTTPServer

signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
{leaves}

class Page(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(pathlib.Path(__file__).with_name(sys.argv[1]).read_bytes())

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


def show(page: Path, *incarnations: str) -> None:
    """Writes the page of a head that is Ready, with data nodes of these incarnations. A reader finds it whole."""
    nodes = [{"index": i, "incarnation": known} for i, known in enumerate(incarnations)]
    new = page.with_suffix(".new")
    new.write_text(json.dumps({"state": "Ready", "rows": 0, "splits": {}, "nodes": nodes}))
    new.rename(page)


@pytest.fixture
def untidy(tmp_path: Path) -> Iterator[Callable[..., Cache]]:
    """A function that makes a cache of servers that leave something over, which is removed after the test."""

    def made(what: str, mode: Mode = "local") -> Cache:
        program = tmp_path / "server"
        program.write_text(_UNTIDY.format(python=sys.executable, leaves=_LEAVES[what]))
        program.chmod(0o700)
        show(tmp_path / "local")
        show(tmp_path / "head", "before")
        (tmp_path / "node").write_text('{"incarnation": "now"}')
        return Cache(program, tmp_path / "cache", [], nodes=1, mode=mode)

    yield made
    if (left := tmp_path / "server.pid").exists():
        os.kill(int(left.read_text()), signal.SIGKILL)
    for path in Path("/dev/shm").glob("datacache-test-*"):
        path.unlink()


@pytest.mark.parametrize(
    ("what", "named"),
    [("a file", "/tmp/spilled.tmp"), ("a process", "sleep 987654"), ("shared memory", "/dev/shm/datacache-test-")],
)
def test_what_a_server_leaves_over_is_named(what: str, named: str, untidy: Callable[..., Cache]) -> None:
    cache = untidy(what)
    cache.start()
    cache.wait("Ready")
    with pytest.raises(AssertionError, match=f"left over: .*{named}"):
        cache.stop()


def test_a_tidy_server_stops(untidy: Callable[..., Cache]) -> None:
    cache = untidy("nothing")
    cache.start()
    cache.wait("Ready")
    assert cache.stop() == {"local": 0}


def test_a_status_of_an_older_data_node_does_not_count(untidy: Callable[..., Cache], tmp_path: Path) -> None:
    with untidy("nothing", "cluster") as cache:

        def join(_: dict[str, Any]) -> None:
            with contextlib.suppress(OSError):
                assert cache.status()["state"] == "Ready"
                show(tmp_path / "head", "now")

        assert cache.wait("Ready", seen=join)["nodes"] == [{"index": 0, "incarnation": "now"}]


@pytest.mark.parametrize("name", ["node-1", "head"])
def test_the_status_after_a_restart_is_of_the_new_process(
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
