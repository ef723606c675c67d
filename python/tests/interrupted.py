# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A program for test_interrupts: it makes one call, which then waits, and nothing but Ctrl-C ends it.

python interrupted.py ENDPOINT CALL. It prints a line when the servers are to stop, and reads one when they have.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator

import pyarrow as pa

from kubeflow_datacache import DataCache, Put, derive, put

MEGABYTE = pa.table({"id": range(1000), "text": ["x" * 1000] * 1000})


def servers_stop() -> None:
    """Returns when the servers have stopped."""
    print("now", flush=True)
    sys.stdin.readline()


def never_ends(rows: pa.RecordBatch) -> pa.RecordBatch:
    """A transform."""
    servers_stop()
    time.sleep(1e6)  # noqa: TID251 - a function of the user
    return rows


def stalls_in_a_child(rows: pa.RecordBatch) -> pa.RecordBatch:
    """A transform of another process, whose standard input is not this one's."""
    time.sleep(1e6)  # noqa: TID251 - a function of the user
    return rows


def more_than_buffers_hold() -> Iterator[pa.Table]:
    """A part of 400 MB; the servers stop after 2 MB of it."""
    for i in range(400):
        if i == 2:
            servers_stop()
        yield MEGABYTE


def source_that_stalls() -> Iterator[pa.Table]:
    """A part whose rows never come."""
    yield MEGABYTE
    servers_stop()
    time.sleep(1e6)  # noqa: TID251 - a function of the user


def _begun(cache: DataCache, name: str) -> Put:
    """A put of four parts."""
    return Put.begin(cache, name, MEGABYTE.schema, parts=4)


def _put(cache: DataCache, name: str) -> None:
    servers_stop()
    put(cache, name, MEGABYTE)


def _send(cache: DataCache, name: str) -> None:
    _begun(cache, name).send(0, more_than_buffers_hold)


def _send_parts(cache: DataCache, name: str) -> None:
    _begun(cache, name).send_parts({0: more_than_buffers_hold, 1: lambda: [MEGABYTE]})


def _source(cache: DataCache, name: str) -> None:
    _begun(cache, name).send_parts({0: source_that_stalls, 1: lambda: [MEGABYTE]})


def _publish(cache: DataCache, name: str) -> None:
    begun = _begun(cache, name)
    receipt = begun.send(0, lambda: [MEGABYTE])
    servers_stop()
    begun.publish([receipt])


def _derive(cache: DataCache, name: str) -> None:
    derive(cache, never_ends, name, recipe="never")


def _first_batch(cache: DataCache, name: str) -> None:
    batches = iter(cache.loader(global_batch_size=16))
    servers_stop()
    next(batches)


def _batches(cache: DataCache, name: str) -> None:
    batches = iter(cache.loader(global_batch_size=16))
    next(batches)
    servers_stop()
    for _ in batches:
        pass


def _transform(cache: DataCache, name: str) -> None:
    next(iter(cache.loader(global_batch_size=16, transform=never_ends, transform_threads=2)))


def _transform_processes(cache: DataCache, name: str) -> None:
    batches = iter(cache.loader(global_batch_size=16, transform=stalls_in_a_child, transform_processes=2))
    servers_stop()
    next(batches)


def _torch(cache: DataCache, name: str) -> None:
    from torch.utils.data import DataLoader

    from kubeflow_datacache.torch import StreamingDataset

    dataset = StreamingDataset(cache, global_batch_size=16)
    batches = iter(DataLoader(dataset, batch_size=None, num_workers=2))
    next(batches)
    servers_stop()
    for _ in batches:
        pass


def _table(cache: DataCache, name: str) -> None:
    table = cache.table()
    servers_stop()
    table.__getitems__([5, 1])


def _length(cache: DataCache, name: str) -> None:
    servers_stop()
    len(cache)


def _status(cache: DataCache, name: str) -> None:
    servers_stop()
    cache.status()


CALLS = {
    call.__name__[1:]: call
    for call in (
        _put,
        _send,
        _send_parts,
        _source,
        _publish,
        _derive,
        _first_batch,
        _batches,
        _transform,
        _transform_processes,
        _torch,
        _table,
        _length,
        _status,
    )
}


def main() -> None:
    """Makes the call that the command line names."""
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # where the parent ignores SIGINT, as for a background job of a shell, Python installs no handler
    endpoint, call = sys.argv[1:]
    CALLS[call](DataCache(endpoint, retry_seconds=1e6), call.replace("_", "-"))


if __name__ == "__main__":
    main()
