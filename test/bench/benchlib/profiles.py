# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""`make profile`: records CPU profiles of our server and prints how its time is divided."""

from __future__ import annotations

import argparse
import math
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchlib import arguments, machine, profile_parts
from benchlib.clients import Clients
from benchlib.measure import warm_page_cache
from benchlib.process import Server
from benchlib.progress import Progress
from benchlib.subjects import Request, epoch, shard, start_ours
from benchlib.tables import Table, ensure
from kit.ports import free_port

WORK = {"load": "load", "stream": "stream, one client", "shuffle": "shuffled epoch, clump 1, one client"}
STREAM_SECONDS = 8
# The server's --http port times out after two minutes.
MOST_SECONDS = 100


@dataclass(frozen=True)
class Profile:
    """A CPU profile: its file, and the work's CPU-seconds per GB (1e9 bytes) of Arrow."""

    work: str
    table: str
    file: Path
    cpu: float


class Recorder(threading.Thread):
    """Records a CPU profile of a server to a file, for some seconds from when it listens."""

    def __init__(self, address: str, seconds: int, file: Path) -> None:
        super().__init__(daemon=True)
        self._url, self._file = f"http://{address}/debug/pprof/profile?seconds={seconds}", file
        self._deadline = time.monotonic() + 60
        self._file.unlink(missing_ok=True)
        self.start()

    def run(self) -> None:
        while time.monotonic() < self._deadline:
            try:
                with urllib.request.urlopen(self._url) as answer:
                    self._file.write_bytes(answer.read())
                return
            except urllib.error.URLError:  # the server is not listening yet
                time.sleep(0.005)

    def finish(self) -> Path:
        """Waits for the profile."""
        self.join()
        if not self._file.exists():
            raise RuntimeError(f"{self._url} gave no profile")
        return self._file


def profiles(server: Path, nodes: int, table: Table, out: Path, step: Progress) -> Iterator[Profile]:
    """Yields profiles of a table's streams and of its load; for the load it starts the server a second time."""
    warm_page_cache(table.files)
    address = f"127.0.0.1:{free_port()}"
    flags = ["--profiles", "--http", address]
    files = {work: out / f"{table.name}-{work}.pprof" for work in WORK}
    step(f"{table.name}: streams")
    with start_ours(server, nodes, table, out, "profile", flags) as running, Clients(1) as pool:
        for work, request in {"stream": shard(running), "shuffle": epoch(running, 1, 0)}.items():
            recorder = Recorder(address, STREAM_SECONDS, files[work])
            cpu = read_while(recorder, pool, running, request)
            yield Profile(work, table.name, recorder.finish(), cpu)
        seconds = min(MOST_SECONDS, math.ceil(2 * running.start_wall) + 1)
    step(f"{table.name}: load")
    recorder = Recorder(address, seconds, files["load"])
    with start_ours(server, nodes, table, out, "profile", flags) as running:
        yield Profile("load", table.name, recorder.finish(), running.start_cpu / table.gigabytes)


def read_while(recorder: Recorder, pool: Clients, server: Server, request: Request) -> float:
    """Reads the whole table repeatedly until the recorder is done. Returns the server's CPU-seconds per GB."""
    before, size = server.cpu(), 0
    while recorder.is_alive():
        size += pool.read([request(0, 1)]).bytes
    return (server.cpu() - before) / size * 1e9


def text(work: str, kept: list[Profile]) -> str:
    """Formats the CPU-seconds per GB of a kind of work, by part and table."""
    shares = [profile_parts.shares(p.file) for p in kept]
    lines = [f"{WORK[work]:<38}" + "".join(f"{p.table:>10}" for p in kept)]
    for part in profile_parts.PARTS:
        cells = [p.cpu * share.get(part, 0.0) for p, share in zip(kept, shares, strict=True)]
        if max(cells) >= 0.005:
            lines.append(
                f"  {part:<36}" + "".join(f"{cell:10.2f}" if cell >= 0.005 else f"{'-':>10}" for cell in cells)
            )
    lines.append(f"  {'in all':<36}" + "".join(f"{p.cpu:10.2f}" for p in kept))
    return "\n".join(lines)


def options(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="test/bench/profile", description="Keeps CPU profiles of our server at work, and prints their parts."
    )
    arguments.add_tables(parser)
    arguments.add_server(parser)
    parser.add_argument(
        "--out", type=Path, default=arguments.CACHE / "profiles", help="folder for the profiles (default %(default)s)"
    )
    chosen = parser.parse_args(given)
    arguments.check(parser, chosen)
    return chosen


def main(given: list[str]) -> int:
    chosen = options(given)
    out: Path = chosen.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    progress = Progress()
    about = machine.describe() | {"load average before": machine.load_average()}
    kept: list[Profile] = []
    for name in chosen.tables:
        table = ensure(name, chosen.scale, chosen.data.resolve(), progress)
        kept += profiles(chosen.server.resolve(), chosen.nodes, table, out, progress)
    progress("done")
    print("datacache profile:", ", ".join(f"{key} {value}" for key, value in about.items()))
    print(
        "the server's CPU-seconds per GB (1e9 bytes) of Arrow: the kernel's count, in parts by the profile's samples\n"
    )
    for work in WORK:
        print(text(work, [p for p in kept if p.work == work]), end="\n\n")
    print(f"the profiles: go tool pprof -http localhost: {out}/TABLE-WORK.pprof")
    return 0
