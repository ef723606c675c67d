# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A process that was forked from a connected one gets an error that says what to do, where gRPC would hang."""

from __future__ import annotations

import subprocess
import sys

import pytest
from peer import Peer

# A process of its own: pytest's has connected, and its forks could not. "early" forks before it connects.
PROGRAM = """
import multiprocessing, sys
from kubeflow_datacache import DataCache, DataCacheError, World

def read(cache):
    loader = cache.loader(global_batch_size=10, world=World(0, 1))
    try:
        print("steps", len(list(loader)), flush=True)
    except DataCacheError as error:
        print(type(error).__name__, error, flush=True)

with DataCache(sys.argv[1]) as cache:
    if sys.argv[2] != "early":
        read(cache)
    child = multiprocessing.get_context("fork").Process(target=read, args=(cache,))
    child.start()
    child.join()
    sys.exit(child.exitcode)
"""


@pytest.mark.parametrize(
    ("when", "want"),
    [("early", ["steps 10"]), ("late", ["steps 10", "ForkedError"])],
)
def test_a_forked_child(peer: Peer, when: str, want: list[str]) -> None:
    command = [sys.executable, "-c", PROGRAM, peer.endpoint, when]
    run = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert [line[: len(start)] for line, start in zip(lines, want, strict=True)] == want
    if when == "late":
        assert 'multiprocessing_context="forkserver" or "spawn"' in lines[-1]
