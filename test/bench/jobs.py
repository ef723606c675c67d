# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Benchmark jobs: how one cache divides its bytes among jobs, and what the division costs.

A job is a process of one thread for each stream, which reads shuffled epochs with the loader's own HTTP/2 client and
keeps nothing. Each is bound to a core, since jobs have machines of their own: otherwise the one with more threads would
get more of this machine. All jobs of a case read at the same time; the bytes that arrive within the measured seconds
count.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from lake import Lake, Made
from server import Caches

from kubeflow_datacache import DataCache

ROWS, LENGTH = 60_000, 512  # rows of the table, int32 tokens of a row
BATCH_BYTES = 1 << 20
WARM_UP = 0.3  # seconds between the first batch of the last stream and the start of the measurement
WEIGHTS = {"heavy": 3}
RATE = "3gbit"  # of the network that is full: less than two cores can send


@dataclass(frozen=True)
class Job:
    """A job of a case, and the bounds of its share of the bytes."""

    name: str
    streams: int
    least: float = 0
    most: float = 1
    names: int = 1  # each stream names itself one of so many jobs, as a client that lies would
    address: str = "127.0.0.1"  # of the client


CASES: dict[str, list[Job]] = {
    "one alone, 1 stream": [Job("a", 1)],
    "one alone, 8 streams": [Job("a", 8)],
    "four together, 2 streams each": [Job(name, 2) for name in "abcd"],
    "32 streams and 2 streams": [Job("many", 32, 0.45, 0.55), Job("few", 2, 0.45, 0.55)],
    "31 forged names of one address, and 2 streams": [
        Job("forged", 31, 0.45, 0.55, names=31),
        Job("honest", 2, 0.45, 0.55, address="127.0.0.2"),
    ],
    "weights 3:1, 8 streams each": [Job("heavy", 8, 0.675, 0.825), Job("light", 8, 0.225, 0.275)],
}
# The smallest ratio of the new server's bytes to the other one's.
BARS = {"one alone, 1 stream": 0.98, "one alone, 8 streams": 0.98, "four together, 2 streams each": 0.95}


def table(lake: Lake) -> Made:
    """Writes a table of random tokens."""
    schema = pa.schema([("tokens", pa.list_(pa.int32()))])
    ends = np.arange(0, (ROWS + 1) * LENGTH, LENGTH, dtype=np.int32)
    tokens = np.random.default_rng(1).integers(0, 50_000, ROWS * LENGTH, np.int32)
    column = pa.ListArray.from_arrays(ends, tokens)
    return Made("tokens", lake.create("tokens", schema, pa.table([column], schema=schema)).metadata_location)


class Streams:
    """The streams of a job, in its own process."""

    def __init__(self, endpoint: str, count: int, names: int) -> None:
        self._endpoint, self._count, self._names = endpoint, count, names
        self._begin = self._end = float("inf")
        self._flowing = threading.Barrier(count + 1)
        self.bytes = [0] * count

    def read(self) -> None:
        """Says when all streams have begun, reads the times of the measurement, and prints the bytes at its end."""
        threads = [threading.Thread(target=self._stream, args=(rank,)) for rank in range(self._count)]
        for thread in threads:
            thread.start()
        self._flowing.wait()
        print("ready", flush=True)
        self._begin, self._end = json.loads(sys.stdin.readline())
        for thread in threads:
            thread.join()
        print(json.dumps(self.bytes))

    def _stream(self, rank: int) -> None:
        epoch = rank
        with DataCache(self._endpoint) as cache:
            own = {"job": f"forged-{rank % self._names}"} if self._names > 1 else {}
            while time.monotonic() < self._end:
                request = {
                    "kind": "epoch", "seed": 7, "epoch": epoch, "shuffle": True, "global_batch": 1024, "tail": "keep",
                    "rank": 0, "world": 1, **own,
                }  # fmt: skip
                for endpoint in cache.get_flight_info(request).endpoints:
                    self._drain(
                        rank, cache.stream(endpoint.location, endpoint.ticket, BATCH_BYTES), first=epoch == rank
                    )
                epoch += self._count

    def _drain(self, rank: int, reader: Any, *, first: bool) -> None:
        if first:
            reader.read_chunk()
            self._flowing.wait()
        with contextlib.suppress(StopIteration):
            while True:
                size = reader.read_chunk()[0].nbytes
                now = time.monotonic()
                if now >= self._end:
                    reader.cancel()
                    return
                if now >= self._begin:
                    self.bytes[rank] += size


def measure(endpoint: str, jobs: Sequence[Job], seconds: float, *, named: bool) -> dict[str, float]:
    """GB/s of each job. named: whether the requests name their jobs."""
    processes: list[subprocess.Popen[str]] = []
    cores = sorted(os.sched_getaffinity(0))
    for number, job in enumerate(jobs):
        environment = {name: value for name, value in os.environ.items() if name != "TRAIN_JOB_NAME"}
        if named:
            environment["TRAIN_JOB_NAME"] = job.name
        own = [endpoint, job.streams, cores[number % len(cores)], job.names, job.address]
        command = [sys.executable, __file__, "--job", json.dumps(own)]
        pipe = subprocess.PIPE
        processes.append(subprocess.Popen(command, env=environment, text=True, stdin=pipe, stdout=pipe))
    for process in processes:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise RuntimeError(f"a job ended with {process.wait()}")
    begin = time.monotonic() + WARM_UP
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(json.dumps([begin, begin + seconds]) + "\n")
        process.stdin.flush()
    answers = [process.communicate()[0] for process in processes]
    return {job.name: sum(json.loads(answer)) / seconds / 1e9 for job, answer in zip(jobs, answers, strict=True)}


def shares(rates: Mapping[str, float]) -> dict[str, float]:
    """The part of all bytes that each job got."""
    total = sum(rates.values())
    return {name: rate / total for name, rate in rates.items()}


def compare(endpoints: Mapping[str, str], only: str, rounds: int, seconds: float) -> bool:
    """Measures the servers in turns and prints medians. Returns whether every bar is met."""
    met = True
    for case, jobs in CASES.items():
        if only not in case:
            continue
        seen: dict[str, list[dict[str, float]]] = {name: [] for name in endpoints}
        for _ in range(rounds):
            for name, endpoint in endpoints.items():
                seen[name].append(measure(endpoint, jobs, seconds, named=name == "jobs"))
        print(case)
        totals = {name: [sum(rates.values()) for rates in each] for name, each in seen.items()}
        for name, each in seen.items():
            parts = [shares(rates) for rates in each]
            text = ", ".join(f"{job.name} {statistics.median(part[job.name] for part in parts):.1%}" for job in jobs)
            print(f"  {name}: {statistics.median(totals[name]):.2f} GB/s; {text}")
        for job in jobs:
            part = statistics.median(shares(rates)[job.name] for rates in seen["jobs"])
            met &= bar(f"  share of {job.name}", part, job.least, job.most)
        for other in totals.keys() - {"jobs"}:
            ratio = statistics.median(a / b for a, b in zip(totals["jobs"], totals[other], strict=True))
            met &= bar(f"  bytes of those of {other}", ratio, BARS.get(case, 0), 1e9)
    return met


def bar(what: str, value: float, least: float, most: float) -> bool:
    """Prints a value and whether it is within its bounds."""
    met = least <= value <= most
    print(f"{what}: {value:.3f}{'' if met else f', MISSED: want {least} to {most}'}")
    return met


def main() -> None:
    """Prints the measurements, or reads for a job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", type=Path, help="the cacheserver binary")
    parser.add_argument("--before", type=Path, help="one to compare it with, that may not know jobs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--only", default="", help="measure the cases whose names contain this")
    parser.add_argument("--link", default="none", help=argparse.SUPPRESS)
    parser.add_argument("--job", type=json.loads, help=argparse.SUPPRESS)
    own = parser.parse_args()
    if own.job:
        endpoint, streams, core, names, address = own.job
        os.sched_setaffinity(0, {core})
        connect: Any = functools.partial(socket.create_connection, source_address=(address, 0))
        socket.create_connection = connect
        Streams(endpoint, streams, names).read()
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "sharing.json").write_text(json.dumps({"weights": WEIGHTS}))
        running = {"jobs": Caches(own.server.resolve(), folder / "jobs")}
        if own.before:
            running["before"] = Caches(own.before.resolve(), folder / "before")
        try:
            made = table(Lake(folder))
            flags = {"jobs": ["--sharing", str(folder / "sharing.json")], "before": []}
            endpoints = {name: caches.of(made, nodes=1, flags=flags[name]).endpoint for name, caches in running.items()}
            met = compare(endpoints, own.only, own.rounds, own.seconds)
        finally:
            for caches in running.values():
                caches.close()
    if own.link == "none" and not own.only and not over_network(sys.argv):
        print("nothing is measured over a full network: that needs root, unshare and tc with tbf")
    if not met:
        sys.exit("a bar is missed")


def over_network(arguments: Sequence[str]) -> bool:
    """Measures the shares again in a network namespace whose loopback device carries less than the machine can send.

    Returns whether that was possible.
    """
    limit = f"tc qdisc replace dev lo root tbf rate {RATE} burst 512k limit 4m"
    alone = ["unshare", "--net", "sh", "-c", f'ip link set lo up && {limit} && exec "$@"', "sh"]
    if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode != 0:
        return False
    print(f"over a network of {RATE}")
    for only in ("32 streams", "weights"):
        subprocess.run([*alone, sys.executable, *arguments, "--link", RATE, "--only", only], check=False)
    return True


if __name__ == "__main__":
    main()
