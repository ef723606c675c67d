# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A forked child of a connected process reads the right rows, or gets an error that says what to do."""

from __future__ import annotations

import subprocess
import sys

import pytest
from kit.deadline import limit
from peer import Peer

# Runs in a separate process: pytest's process has connected, so its forked children cannot use gRPC. "early" forks
# before connecting; in the other cases the child uses objects that the parent has used. The parent uses them again
# after the child has ended.
PROGRAM = """
import gc, itertools, multiprocessing, os, sys
from kubeflow_datacache import DataCache, DataCacheError, World

endpoint, what = sys.argv[1:]

def read(cache):
    return len(list(cache.loader(global_batch_size=10, world=World(0, 1), transform=lambda rows: rows)))

def attempt(call):
    try:
        print("gave", call(), flush=True)
    except DataCacheError as error:
        print(type(error).__name__, error, flush=True)

def in_a_child(call):
    child = multiprocessing.get_context("fork").Process(target=attempt, args=(call,))
    child.start()
    child.join()
    if child.exitcode:
        sys.exit(child.exitcode)

with DataCache(endpoint, transport="grpc" if what.endswith("grpc") else "h2") as cache:
    if what == "early":
        in_a_child(lambda: read(cache))
        sys.exit()
    attempt(lambda: read(cache))
    loader = cache.loader(global_batch_size=2, world=World(0, 1), prefetch_bytes=1, transform=lambda rows: rows)
    rows = cache.table()
    batches = iter(loader)
    used = [next(batches), rows[3]]
    if what == "dataset":
        from torch.utils.data import DataLoader
        from kubeflow_datacache.torch import TableDataset
        table = TableDataset(cache)
        table[3]
        attempt(lambda: len(list(DataLoader(table, batch_size=10, num_workers=2))))
    elif what == "exit":  # os.fork: a multiprocessing child exits without destroying objects
        child = os.fork()
        if not child:
            del batches, loader, rows, cache
            gc.collect()
            sys.exit()
        print("gave", os.waitpid(child, 0)[1])
    else:
        in_a_child({
            "new loader": lambda: read(cache),
            "new loader, grpc": lambda: read(cache),
            "iterator": lambda: next(batches),
            "iteration": lambda: len(list(loader)),
            "state": lambda: (loader.load_state_dict(loader.state_dict()), loader.set_epoch(3), loader.stats(), 1)[-1],
            "table": lambda: rows[4],
            "table, grpc": lambda: rows[4],
            "close": lambda: cache.close(),
            "close, grpc": lambda: cache.close(),
            "close readers": lambda: (loader.close(), rows.close(), batches.close(), 1)[-1],
        }[what])
    attempt(lambda: (len(list(batches)), rows[5]["id"]))
"""


@pytest.mark.parametrize(
    ("what", "want"),
    [
        ("new loader", "gave 10"),
        ("new loader, grpc", "ForkedError"),
        ("iterator", "ForkedError"),
        ("iteration", "gave 49"),
        ("table", "gave {'id': 4, "),
        ("table, grpc", "ForkedError"),
        ("dataset", "gave 10"),
        ("state", "gave 1"),
        ("close", "gave None"),
        ("close, grpc", "gave None"),
        ("close readers", "gave 1"),
        ("exit", "gave 0"),
    ],
)
def test_a_forked_child_of_a_connected_process(peer: Peer, what: str, want: str) -> None:
    if what == "dataset":
        pytest.importorskip("torch")
    first, child, last = run(peer, what)
    assert (first, last) == ("gave 10", "gave (49, 5)")
    assert child.startswith(want)
    if want == "ForkedError":
        assert 'multiprocessing_context="forkserver" or "spawn"' in child


def test_a_child_that_was_forked_before_connecting(peer: Peer) -> None:
    assert run(peer, "early") == ["gave 10"]


def run(peer: Peer, what: str) -> list[str]:
    """The lines that the program prints; torch reports a worker's error on several lines."""
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, peer.endpoint, what]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=limit())
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    if what == "table":
        return [lines[0], " ".join(lines[1:-1]), lines[-1]]
    return lines
