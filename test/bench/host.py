# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Benchmark host: what ranks of one host cost, each alone and with one reader: of the same rows, and of their own."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import resource
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal, cast

import numpy as np
import pyarrow as pa
from lake import Lake, Made
from server import Cache, Caches

from kubeflow_datacache import DataCache, Loader, Pack, PackedBatch, World

LENGTH, BATCH = 512, 128  # int32 tokens of a row, rows of a step: those of 1,024 over 8 groups of ranks
PACK: Final = Pack("tokens", tokens=BATCH // 2 * LENGTH, packs=2)  # with --packs: steps of as many rows
WAYS: Final = ("off", "require")
BARS: Final = {
    "rows": {"wire": 1.01, "CPU": 0.45, "wall": 0.5},
    "packs": {"wire": 1.01, "CPU": 0.45, "wall": 0.5},
    "own rows": {"client": 0.85, "connections": 0.125},
}
What = Literal["rows", "packs", "own rows"]  # the same rows for all ranks, the same packs, or rows of its own for each


def table(lake: Lake, gigabytes: float, most: int = 50_000) -> Made:
    """Writes a table of random tokens, below a number, and a label."""
    rows = int(gigabytes * 1e9 / (4 * LENGTH + 8))
    random = np.random.default_rng(1)
    ends = pa.array(np.arange(0, (rows + 1) * LENGTH, LENGTH, dtype=np.int32))
    tokens = pa.ListArray.from_arrays(ends, pa.array(random.integers(0, most, rows * LENGTH, np.int32)))
    data = pa.table({"tokens": tokens, "label": pa.array(np.arange(rows))})
    properties = {"write.parquet.row-group-limit": "4096", "write.parquet.compression-codec": "uncompressed"}
    return Made("tokens", lake.create("tokens", data.schema, data, properties=properties).metadata_location)


def rank(endpoint: str, host: Any, ranks: int, number: int, what: What) -> None:
    """One rank: reads the second epoch when told to, copies the tokens of each step once, as to a device, and prints
    what it cost."""
    with DataCache(endpoint, retry_seconds=10) as cache:
        world = World(number, ranks, local=ranks) if what == "own rows" else World(0, 1, replicas=ranks)
        own: Any = {"pack": PACK} if what == "packs" else {"global_batch_size": BATCH * world.size}
        loader: Loader = cache.loader(**own, seed=7, host=host, world=world)
        device = np.empty(BATCH * LENGTH, np.int32)
        next(iter(loader))  # the reader of the host starts
        loader.set_epoch(1)
        print("ready", flush=True)
        sys.stdin.readline()
        before, began, total, steps, already = own_cpu(), time.perf_counter(), 0, 0, loader.stats().shared
        for batch in loader:
            if isinstance(batch, PackedBatch):
                tokens, labels = [packed.numpy("tokens") for packed in batch.packs], batch.arrow()["label"].to_numpy()
            else:
                tokens, labels = [batch.numpy()["tokens"].reshape(-1)], batch.numpy()["label"]
            np.concatenate(tokens, out=device[: sum(map(len, tokens))])
            total, steps = total + int(labels.sum()) * (batch.step + 1), steps + 1
        wall, shared = time.perf_counter() - began, loader.stats().shared - already
        cpu = own_cpu() - before
        print(json.dumps({"cpu": cpu, "wall": wall, "sum": total, "shared": shared == steps}), flush=True)
        sys.stdin.readline()


def measure(cache: Cache, host: str, ranks: int, what: What) -> dict[str, float]:
    """Reads an epoch on each rank at once. Returns CPU seconds of clients and server, wall seconds, bytes sent,
    connections in the middle of the epoch, and a sum of all rows."""
    command = [sys.executable, __file__, "--rank", cache.endpoint, host, str(ranks)]
    job = f"bench-{os.getpid()}-{time.time_ns()}"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": job}
    processes = [
        subprocess.Popen(
            [*command, str(number), what], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        for number in range(ranks)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    server, reader, sent = server_cpu(cache), reader_cpu(job), bytes_sent(cache)
    tell(processes)
    connected = most_connections(cache, processes)
    spent = [json.loads(process.stdout.readline()) for process in processes if process.stdout is not None]
    server, reader, sent = server_cpu(cache) - server, reader_cpu(job) - reader, bytes_sent(cache) - sent
    tell(processes)
    for process in processes:
        process.wait()
    assert sent, "the server counted no bytes of streams"
    assert (len({each["sum"] for each in spent}) == 1) == (ranks == 1 or what != "own rows"), f"not these rows: {spent}"
    assert all(each["shared"] == (host != "off") for each in spent), f"not shared as wanted: {spent}"
    clients = sum(each["cpu"] for each in spent) + reader
    wall, total = max(each["wall"] for each in spent), sum(each["sum"] for each in spent)
    return {
        "client": clients,
        "server": server,
        "wall": wall,
        "bytes": sent,
        "connections": connected,
        "sum": total,
    }


def tell(processes: list[subprocess.Popen[str]]) -> None:
    """Lets ranks go on."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()


def server_cpu(cache: Cache) -> float:
    """CPU seconds of the cache's process."""
    return process_cpu(cache.processes["local"].pid)


def reader_cpu(job: str) -> float:
    """CPU seconds of the reader of a job's ranks; 0 if there is none."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # a process has ended
            command, environment = (folder / "cmdline").read_bytes(), (folder / "environ").read_bytes()
            if b"kubeflow_datacache.host.reader" in command and job.encode() in environment:
                return process_cpu(int(folder.name))
    return 0.0


def process_cpu(process: int) -> float:
    """CPU seconds of a process."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def connections(cache: Cache) -> int:
    """The sockets of the cache's process."""
    files = Path(f"/proc/{cache.processes['local'].pid}/fd").iterdir()
    return sum(os.path.realpath(file).rpartition("/")[2].startswith("socket:") for file in files)


def most_connections(cache: Cache, processes: list[subprocess.Popen[str]]) -> int:
    """The most sockets of the cache's process until a rank has read its epoch."""
    most, outputs = 0, [process.stdout for process in processes if process.stdout is not None]
    while not select.select(outputs, [], [], 0.05)[0]:
        most = max(most, connections(cache))
    return most


def bytes_sent(cache: Cache) -> float:
    """Bytes of streams that the data nodes have sent."""
    _, metrics = cache.get("/metrics")
    values = re.findall(r"^datacache_\w*stream_bytes_total(?:\{.*\})? (\S+)$", metrics, re.MULTILINE)
    return sum(map(float, values))


def own_cpu() -> float:
    """CPU seconds of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", type=Path, required=True, help="the cacheserver binary")
    parser.add_argument("--gigabytes", type=float, default=1.0, help="size of the table")
    parser.add_argument("--ranks", type=int, default=8, help="ranks of the host")
    parser.add_argument("--nodes", type=int, default=1, help="data nodes, for the same rows")
    parser.add_argument("--far", type=int, default=64, help="data nodes, for each rank's own rows; 0: not measured")
    parser.add_argument("--packs", action="store_true", help="read packs of tokens instead of the same rows")
    parser.add_argument("--rounds", type=int, default=3, help="epochs each way, in turns; the best counts")
    own = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        made = table(Lake(Path(folder)), own.gigabytes)
        caches = Caches(own.server.resolve(), Path(folder) / "logs", keep=1)
        try:
            if own.nodes:
                compare(caches.of(made, nodes=own.nodes), "packs" if own.packs else "rows", own.nodes, own)
            if own.far:
                compare(caches.of(made, nodes=own.far), "own rows", own.far, own)
        finally:
            caches.close()


def compare(cache: Cache, what: What, nodes: int, own: argparse.Namespace) -> None:
    """Measures in turns one rank, all ranks alone and all with one reader, and prints the least of each figure."""
    os.environ["DATACACHE_SHARED_MEMORY"] = "off"  # the data nodes stand for those of other machines
    best: dict[str, dict[str, float]] = {}
    idle = connections(cache)  # before there are ranks: those of its own processes
    for _ in range(own.rounds):
        for way, ranks in ((WAYS[0], 1), *((way, own.ranks) for way in WAYS)):
            name = f"{ranks} alone" if way == "off" else f"{ranks} by one reader"
            figures = measure(cache, way, ranks, what)
            figures["connections"] -= idle
            least = best.setdefault(name, figures)
            assert figures["sum"] == least["sum"], f"{name}: other rows than before"
            most = max(figures["connections"], least["connections"])
            best[name] = {figure: min(n, least[figure]) for figure, n in figures.items()} | {"connections": most}
    one, alone, shared = best.values()
    assert alone["sum"] == shared["sum"], "the reader's rows are others"
    print(f"a shuffled epoch of {own.gigabytes:g} GB of {what}, {nodes} data nodes; the least of {own.rounds}")
    print(f"{'':18} {'clients CPU-s':>14} {'server CPU-s':>13} {'wall s':>8} {'GB sent':>8} {'connections':>12}")
    for name, row in best.items():
        costs = f"{row['client']:14.2f} {row['server']:13.2f} {row['wall']:8.2f} {row['bytes'] / 1e9:8.2f}"
        print(f"{name:18} {costs} {row['connections']:12.0f}")
    ratios = {figure: shared[figure] / alone[figure] for figure in ("client", "wall", "connections")}
    ratios["CPU"] = (shared["client"] + shared["server"]) / (alone["client"] + alone["server"])
    ratios["wire"] = shared["bytes"] / one["bytes"]
    for figure, bar in BARS[what].items():
        beside = "one reader" if figure == "wire" else f"{own.ranks} alone"
        print(f"{figure}: {ratios[figure]:.3f} of {beside}; the bar is {bar}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        rank(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]), cast("What", sys.argv[6]))
    else:
        main()
