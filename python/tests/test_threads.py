# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Statistics are read in one thread while another one reads batches: neither raises an error."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Generator, Iterator

import pytest
from peer import Peer, Table

from kubeflow_datacache import DataCache, World
from kubeflow_datacache.torch import StreamingDataLoader, StreamingDataset

ALONE = World(0, 1)


@pytest.fixture(autouse=True)
def _switching() -> Iterator[None]:
    """Threads take turns as often as the interpreter can."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-7)
    yield
    sys.setswitchinterval(usual)


@contextlib.contextmanager
def meanwhile(act: Callable[[], object]) -> Generator[None]:
    """Calls act again and again in two threads while the with block runs, and raises its first error."""
    over, errors = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            while not over.is_set():
                act()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]


def test_statistics_are_read_while_streams_open(connect: Callable[..., DataCache]) -> None:
    with Peer(Table(80, [(i, i + 1) for i in range(80)])) as many:  # each of its data nodes has a stream
        loader = connect(many.endpoint).loader(global_batch_size=8, shuffle=False, world=ALONE)
        with meanwhile(loader.stats):
            assert sum(batch.num_rows for batch in loader) == 80


def test_statistics_of_workers_are_read_while_they_report(cache: DataCache) -> None:
    dataset = StreamingDataset(cache, global_batch_size=1, world=ALONE)
    loader = StreamingDataLoader(dataset, num_workers=2, bundle_bytes=1)
    with meanwhile(loader.stats):
        assert sum(1 for _ in loader) == 100
