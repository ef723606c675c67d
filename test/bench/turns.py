# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Benchmark turns: the processor time of two versions of the server for the same work, in turns.

Loads and streams: CPU seconds of the server. Epochs: CPU seconds per GB of server and loader. Answers: milliseconds.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow.flight as fl
from lake import Lake, Made
from server import Cache, Caches
from take import cpu_of, read, table

from benchlib.client import read_dataset
from kubeflow_datacache import DataCache, World

CALLS = 300
WHOLE = ("0", "1")  # the path of the only rank of one
# Of one version and one kind of work: a figure for each round.
Figures = dict[str, dict[str, list[float]]]


def load(caches: Caches, metadata: str) -> float:
    """Starts a cache of one data node. Returns the CPU seconds until it is ready."""
    cache = caches.start(["--metadata", metadata], nodes=1)
    cache.wait("Ready")
    cpu = cpu_of(cache)
    cache.stop()
    return cpu


def stream(cache: Cache) -> float:
    """Reads the whole table with pyarrow's client. Returns the server's CPU seconds."""
    before = cpu_of(cache)
    for _ in range(3):
        read_dataset({"uri": cache.endpoint, "path": WHOLE})
    return (cpu_of(cache) - before) / 3


def epoch(cache: Cache) -> tuple[float, float]:
    """Reads a shuffled epoch with the loader. Returns CPU seconds per GB of the server and of the client."""
    with DataCache(cache.endpoint) as client:
        return read(client.loader(global_batch_size=1024, world=World(0, 1)), cache)[:2]


def answer(cache: Cache) -> float:
    """Milliseconds of GetFlightInfo, the median of many calls over one connection."""
    took = []
    with fl.connect(cache.endpoint) as client:
        for _ in range(CALLS):
            began = time.perf_counter()
            client.get_flight_info(fl.FlightDescriptor.for_path(*WHOLE))
            took.append(1e3 * (time.perf_counter() - began))
    return statistics.median(took)


@contextlib.contextmanager
def running(versions: Mapping[str, Path], folder: Path) -> Iterator[dict[str, Caches]]:
    """The caches of each version, in processes that are stopped at the end."""
    with contextlib.ExitStack() as stack:
        yield {
            version: stack.enter_context(contextlib.closing(Caches(binary, folder / version, keep=9)))
            for version, binary in versions.items()
        }


def main() -> None:
    """Prints the measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", type=Path, required=True, help="the cacheserver binary")
    parser.add_argument("--before", type=Path, required=True, help="the binary of another version")
    parser.add_argument("--nodes", default="1,2,4", help="numbers of data nodes")
    parser.add_argument("--gigabytes", type=float, default=1, help="size of the tables")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, in each of which the versions take turns")
    chosen = parser.parse_args()
    versions = {"before": chosen.before.resolve(), "now": chosen.server.resolve()}
    print(f"Work on {chosen.gigabytes} GB; medians of {chosen.rounds} rounds; now / before: its median and extremes")
    print(f"{'rows':5} {'work':28} {'before':>8} {'now':>8} {'ratio':>7}")
    for name in ("72 B", "2 KB"):
        with tempfile.TemporaryDirectory() as folder, running(versions, Path(folder)) as caches:
            made = table(Lake(Path(folder)), name, chosen.gigabytes)
            figures: Figures = defaultdict(lambda: defaultdict(list))
            for turn in range(chosen.rounds + 1):  # turn 0 warms up and is not counted
                for version in list(versions)[:: 1 if turn % 2 else -1]:
                    for work, figure in measure(caches[version], made, chosen):
                        if turn:
                            figures[work][version].append(figure)
        for work, of in figures.items():
            ratios = [now / before for now, before in zip(of["now"], of["before"], strict=True)]
            middle = [statistics.median(values) for values in (of["before"], of["now"], ratios)]
            least, most = min(ratios), max(ratios)
            print(
                f"{name:5} {work:28} {middle[0]:8.3f} {middle[1]:8.3f} {middle[2]:7.3f}  {least:.3f} to {most:.3f}",
                flush=True,
            )


def measure(caches: Caches, made: Made, chosen: argparse.Namespace) -> Iterator[tuple[str, float]]:
    """Yields each kind of work and its figure, of one version."""
    yield "load", load(caches, made.metadata)
    for nodes in map(int, chosen.nodes.split(",")):
        cache = caches.of(made, nodes=nodes)
        if nodes == 1:
            yield "stream, server", stream(cache)
            yield "answer, ms", answer(cache)
        server, client = epoch(cache)
        yield f"epoch, {nodes} data nodes, server", server
        yield f"epoch, {nodes} data nodes, client", client


if __name__ == "__main__":
    main()
