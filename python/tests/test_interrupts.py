# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C ends every public call at once, whatever it waits for."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kit.deadline import limit, pause
from kit.process import Process
from server import Caches

from interrupted import CALLS


@pytest.fixture(scope="module")
def server_process(server: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Process]]:
    """A cache that takes puts, in one process, and its address."""
    folder = tmp_path_factory.mktemp("interrupts")
    (folder / "table").mkdir()
    pq.write_table(
        pa.table({"id": range(20_000), "text": [f"{i:2000}" for i in range(20_000)]}), folder / "table" / "0.parquet"
    )
    with closing(Caches(server, folder / "logs")) as caches:
        cache = caches.start(["--files", str(folder / "table"), "--puts"])
        cache.wait("Ready")
        yield cache.endpoint, cache.processes["local"]


@pytest.mark.parametrize("call", sorted(CALLS))
def test_every_call_ends(server_process: tuple[str, Process], call: str) -> None:
    """While the server hangs, and retries would go on for days."""
    endpoint, server = server_process
    command = [sys.executable, Path(__file__).with_name("interrupted.py"), endpoint, call]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stdout.readline() == "now\n", child.stderr.read()
        server.send_signal(signal.SIGSTOP)
        try:
            child.stdin.write("go\n")
            child.stdin.flush()
            pause(0.3)  # for the call to reach its wait; if it has not, Ctrl-C only comes earlier than meant
            child.send_signal(signal.SIGINT)
            began = time.monotonic()
            child.wait(limit())
        finally:
            server.send_signal(signal.SIGCONT)
            child.kill()
        print(f"{call} ended after {time.monotonic() - began:.2f} s")
        assert child.returncode == -signal.SIGINT, child.stderr.read()
