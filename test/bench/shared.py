# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Benchmark shared: what an epoch costs of a cache on the same machine, by TCP and in shared memory."""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from host import BATCH, LENGTH, table
from lake import Lake
from server import Cache, Caches

from kubeflow_datacache import DataCache, Loader

BAR: Final = 0.3
WAYS: Final = {"TCP": "off", "shared memory": "on"}
ORDERS: Final = {"shuffled": True, "in order": False}


class Cost(NamedTuple):
    """CPU seconds of an epoch: of the client, of the server, and of both in the kernel, which copies what is sent."""

    client: float
    server: float
    kernel: float

    @property
    def both(self) -> float:
        """Those of client and server."""
        return self.client + self.server

    @classmethod
    def so_far(cls, server: int) -> Cost:
        """What this process and a server have cost since they began."""
        own, other = (
            resource.getrusage(resource.RUSAGE_SELF),
            Path(f"/proc/{server}/stat").read_text().rpartition(")")[2],
        )
        user, kernel = (int(ticks) / os.sysconf("SC_CLK_TCK") for ticks in other.split()[11:13])
        return cls(own.ru_utime + own.ru_stime, user + kernel, own.ru_stime + kernel)


@contextlib.contextmanager
def reading(cache: Cache, way: str) -> Iterator[Callable[[bool, int], tuple[Cost, int]]]:
    """Yields a function that reads an epoch one way, shuffled or in order, and copies the tokens of each step once, as
    to a device. It returns the cost, and a sum of the rows and their positions."""
    device = np.empty(BATCH * LENGTH, np.int32)
    server = cache.processes["local"].pid
    with DataCache(cache.endpoint, retry_seconds=10) as client:

        def read(shuffle: bool, epoch: int) -> tuple[Cost, int]:
            os.environ["DATACACHE_SHARED_MEMORY"] = WAYS[way]
            loader: Loader = client.loader(global_batch_size=BATCH, seed=7, shuffle=shuffle)
            loader.set_epoch(epoch)
            before, total = Cost.so_far(server), 0
            for batch in loader:
                columns: dict[str, Any] = batch.numpy()
                np.copyto(device, columns["tokens"].reshape(-1))
                total += int(columns["label"].sum()) * (batch.step + 1)
            return Cost(*(after - ago for after, ago in zip(Cost.so_far(server), before, strict=True))), total

        yield read


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", type=Path, required=True, help="the cacheserver binary")
    parser.add_argument("--gigabytes", type=float, default=1.0, help="size of the table")
    parser.add_argument("--nodes", type=int, default=1, help="data nodes")
    parser.add_argument("--rounds", type=int, default=5, help="epochs each way, in turns; the best counts")
    own = parser.parse_args(arguments)
    print(f"CPU-seconds for each GB of an epoch, {own.nodes} data nodes; the least of {own.rounds}")
    print(f"{'':10} {'':14} {'client':>8} {'server':>8} {'both':>8} {'of both in the kernel':>22}")
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as open_clients:
        caches = Caches(own.server.resolve(), Path(folder) / "logs")
        open_clients.callback(caches.close)
        cache = caches.of(table(Lake(Path(folder)), own.gigabytes, 1 << 31), nodes=own.nodes)
        read = {way: open_clients.enter_context(reading(cache, way)) for way in WAYS}
        for name, shuffle in ORDERS.items():
            costs: dict[str, list[Cost]] = {way: [] for way in WAYS}
            for epoch in range(own.rounds):
                got = {way: read[way](shuffle, epoch) for way in WAYS}
                assert len({total for _, total in got.values()}) == 1, "the ways gave other rows"
                for way, (cost, _) in got.items():
                    costs[way].append(cost)
            best = {way: min(each, key=lambda cost: cost.both) for way, each in costs.items()}
            for way, cost in best.items():
                cells = " ".join(f"{n / own.gigabytes:8.3f}" for n in (cost.client, cost.server, cost.both))
                print(f"{name:10} {way:14} {cells} {cost.kernel / own.gigabytes:22.3f}")
            tcp, shared = best.values()
            whole, kernel = shared.both / tcp.both, shared.kernel / tcp.kernel
            print(f"{'':10} {whole:.2f} of TCP, {kernel:.2f} in the kernel; the bar is {BAR}", flush=True)


if __name__ == "__main__":
    main()
