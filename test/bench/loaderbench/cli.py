# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The command line of `make bench NAME=loader`: options, preparation, progress, the printed table and its JSON."""

from __future__ import annotations

import argparse
import json
import os
import shutil
from contextlib import ExitStack
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError
from pathlib import Path

from benchlib import machine
from benchlib.cli import Progress, words
from benchlib.measure import warm_page_cache
from benchlib.memory import Group
from benchlib.network import Place
from benchlib.process import Server
from benchlib.subjects import start_ours
from benchlib.tables import Table, ensure
from loaderbench import report, shapes
from loaderbench.case import ABOUT, BATCH, Case, version
from loaderbench.check import GROUPS_A_LOOK
from loaderbench.job import EPOCH, PREPARE, RESUME, Job, run
from loaderbench.measure import CHECKPOINT_CAPS, OURS, Bench, Sample, Setup

LOADER_MEMORY = 192 << 20  # of the limit for loader and server, the loader's, imports left out
PROCESS_SECONDS = 10.0  # seconds of one measurement on idle cores, with imports

NOTES = f"""\
CPU: user and system time of the loader's whole process tree, workers included, and of our server process (head and
  {{nodes}} data nodes) beside it, in seconds per GB (1e9 bytes) of the tensors handed over: medians of
  {{rounds}} rounds (of the peers {{peer_rounds}}) in which all take turns, each in a fresh process; rounds: the
  extremes. total = client + server.
  The peers read local files of their own: their client is their total.
wall: seconds a GB and its inverse, with the consumer's check; client, server and check share this machine's cores.
epoch: a reading ends with the epoch or when {{cap:g}} CPU-seconds are used up; figures are of the bytes that came.
Batches of {BATCH} rows as torch tensors, one a column; bytes as one tensor a row. The consumer holds rows to the table:
  each once, and of every {GROUPS_A_LOOK}th group of batches sums over every tensor's bits (of lists and bytes: the
  first and last item of each row); its own CPU is not in the figures, nor are imports and a first use. With workers all
  counts from their first batches on.
resume: half an epoch, or {{way:g}} CPU-seconds, in one process; then from the saved state to the first batch in a
  fresh one, opening and connecting included. right: the rows that were due, in their order.
with memory for a part of the table: loader and our server are in a control group that may use so much of the table's
  size in Arrow, pages of files that they read included, after the imports; all read from disk, which gave what the
  heading says to one thread in reads of 4 MiB. A reading ends with the epoch or after {{wall:g}} s."""


def options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="loaderbench", description="Measures the loader beside others, through to torch tensors."
    )
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    measures, tables, loaders = [EPOCH, RESUME], list(shapes.SHAPES), list(ABOUT)
    parser.add_argument("--scale", type=float, default=1.0, help="size of the tables; 1 is 0.5 GB each (default)")
    parser.add_argument("--repeat", type=int, default=3, help="rounds of ours (default 3)")
    parser.add_argument("--peer-repeat", type=int, default=1, help="rounds of the other loaders (default 1)")
    parser.add_argument("--workers", type=numbers, default=[0, 2], help="DataLoader workers (default 0,2)")
    parser.add_argument("--loaders", type=words(loaders), default=loaders, help=f"of {','.join(loaders)}")
    parser.add_argument("--tables", type=words(tables), default=tables, help=f"of {','.join(tables)}")
    parser.add_argument("--only", type=words(measures), default=measures, help=f"of {','.join(measures)}")
    parser.add_argument("--nodes", type=int, default=2, help="data nodes of our server (default 2)")
    parser.add_argument("--cap", type=float, default=2.5, help="CPU-seconds of one reading (default %(default)s)")
    parser.add_argument(
        "--memory",
        type=fractions,
        default=[],
        help="instead, epochs with memory for these fractions of the table, 0.5,0.25 for example (as root)",
    )
    parser.add_argument("--wall", type=float, default=20.0, help="seconds of one reading with --memory (default 20)")
    parser.add_argument("--server", type=Path, default=machine.REPOSITORY / "bin" / "cacheserver")
    parser.add_argument("--data", type=Path, default=cache / "datacache" / "bench-loader", help="where tables are kept")
    parser.add_argument("--json", type=Path, help="also write machine, samples and lines to this file")
    parser.add_argument("--check", action="store_true", help="exit 1 when a bar is missed")
    chosen = parser.parse_args(arguments)
    if min(chosen.repeat, chosen.peer_repeat) < 1 or chosen.scale <= 0 or chosen.nodes < 1 or chosen.cap <= 0:
        parser.error("--repeat, --peer-repeat and --nodes must be at least 1, --scale and --cap above 0")
    if OURS in chosen.loaders and not chosen.server.exists():
        parser.error(f"{chosen.server} is not there: run `make build`, or give --server")
    if chosen.memory:
        chosen.only = []
    return chosen


def fractions(value: str) -> list[float]:
    given = [float(word) for word in value.split(",")]
    if not all(0 < fraction <= 1 for fraction in given):
        raise argparse.ArgumentTypeError("want fractions of the table above 0 and at most 1, with commas between them")
    return given


def numbers(value: str) -> list[int]:
    given = [int(word) for word in value.split(",")]
    if min(given) < 0:
        raise argparse.ArgumentTypeError("want numbers from 0, with commas between them")
    return given


class Session:
    """One run: the available loaders, the tables in their formats, and the samples."""

    def __init__(self, chosen: argparse.Namespace, progress: Progress) -> None:
        self.samples: list[Sample] = []
        self.tables: list[Table] = []
        self.loaders: dict[str, str] = {}  # descriptions by loader
        self._chosen, self._progress = chosen, progress
        self._setup = Setup(
            chosen.only, chosen.workers, chosen.repeat, chosen.peer_repeat, chosen.cap, chosen.memory, chosen.wall
        )
        self.failures: dict[str, str] = {}
        self._bench = Bench(self._setup, progress)

    def measure(self) -> None:
        """Measures everything; a failure is recorded and does not stop the rest."""
        chosen = self._chosen
        for loader in chosen.loaders:
            self._find(loader)
        rounds = sum(map(self._setup.rounds_of, self.loaders))
        processes = 2 * len(chosen.workers) * rounds * (EPOCH in chosen.only)
        processes += (len(self.loaders) + rounds) * (RESUME in chosen.only)
        processes += 2 * rounds * len(chosen.memory)
        self._progress.expect(PROCESS_SECONDS * processes * len(chosen.tables))
        for name in chosen.tables:
            table = ensure(name, chosen.scale, chosen.data, self._progress, shapes.SHAPES)
            shapes.truth(table)
            if chosen.memory:
                self._one_by_one(table)
                continue
            formats = {loader: path for loader in self.loaders if (path := self._prepare(loader, table))}
            self.tables.append(table)
            self._table(table, formats)

    def _one_by_one(self, table: Table) -> None:
        """Measures with little memory, with one of the loaders' own formats on the disk at a time."""
        self.tables.append(table)
        for kind in dict.fromkeys(ABOUT[loader].format for loader in self.loaders):
            of = [loader for loader in self.loaders if ABOUT[loader].format == kind]
            formats = {loader: path for loader in of if (path := self._prepare(loader, table))}
            self._table(table, formats)
            for path in formats.values() if kind else ():
                shutil.rmtree(path, ignore_errors=True)
        shutil.rmtree(self._chosen.data / "spill", ignore_errors=True)

    def _find(self, loader: str) -> None:
        try:
            self.loaders[loader] = f"{version(loader)}; shuffles {ABOUT[loader].shuffle}"
        except PackageNotFoundError as error:
            self._failed(loader, error)

    def _prepare(self, loader: str, table: Table) -> Path | None:
        """The path of the table in the loader's own format; creates it if it is missing."""
        path = root(table).with_name(f"{table.name}-{ABOUT[loader].format}")
        if not ABOUT[loader].format or path.exists():
            return path
        self._progress(f"{table.name}: writing it as {ABOUT[loader].format}, once")
        try:
            run(Job(kind=PREPARE, loader=loader, case=Case(table=table, data=path)))
        except RuntimeError as error:
            self._failed(f"{loader}, {table.name}", error)
            return None
        return path

    def _table(self, table: Table, formats: dict[str, Path]) -> None:
        chosen, bench, server = self._chosen, self._bench, None
        logs = chosen.data / "logs"
        logs.mkdir(parents=True, exist_ok=True)

        def limited(group: Group) -> Server:
            spill = chosen.data / "spill"
            shutil.rmtree(spill, ignore_errors=True)
            flags = ["--spill-dir", str(spill), "--memory-limit", str(group.limit - LOADER_MEMORY)]
            place = Place("127.0.0.1", group.before)
            return start_ours(chosen.server.resolve(), chosen.nodes, table, logs, "spill", flags, place=place)

        self.samples += bench.limited(table, formats, limited)
        self.failures |= bench.failures
        if not chosen.only:
            return
        with ExitStack() as stack:
            own = (file for path in set(formats.values()) for file in path.rglob("*") if file.is_file())
            warm_page_cache([*table.files, *map(str, own)])
            if OURS in formats:
                self._progress(f"{table.name}: starting {OURS}")
                server = stack.enter_context(start_ours(chosen.server.resolve(), chosen.nodes, table, logs))
            for sample in bench.table(table, formats, server):
                self.samples.append(sample)
        self.failures |= bench.failures

    def _failed(self, what: str, error: Exception) -> None:
        self.failures[what] = str(error)
        self._progress(f"{what}: left out: {error}")


def root(table: Table) -> Path:
    """The directory of an Iceberg table."""
    return Path(table.metadata).parents[1]


def main(arguments: list[str]) -> int:
    chosen = options(arguments)
    about = machine.describe() | {"load average before": machine.load_average()}
    session = Session(chosen, Progress())
    session.measure()
    about["load average after"] = machine.load_average()
    lines = report.rows(session.samples)
    bars = [bar for row in lines for bar in row.bars]

    print("datacache loader bench:", ", ".join(f"{key} {value}" for key, value in about.items()))
    for t in session.tables:
        print(f"{t.name}: {t.rows:,} rows, {t.arrow_bytes / 1e6:,.1f} MB of Arrow in {len(t.files)} files")
    for loader, what in session.loaders.items():
        print(f"{loader}: {what}")
    notes = NOTES.format(
        nodes=chosen.nodes,
        rounds=chosen.repeat,
        peer_rounds=chosen.peer_repeat,
        cap=chosen.cap,
        way=chosen.cap * CHECKPOINT_CAPS,
        wall=chosen.wall,
    )
    print(f"\n{report.text(lines)}\n\n{notes}")
    for what, reason in session.failures.items():
        print(f"not measured: {what}: {reason}")
    if bars:
        print(f"{sum(bar.met for bar in bars)} of {len(bars)} bars met")
    if chosen.json:
        record = {
            "machine": about,
            "arguments": {key: str(value) for key, value in vars(chosen).items()},
            "tables": [asdict(t) for t in session.tables],
            "loaders": session.loaders,
            "samples": [asdict(s) for s in session.samples],
            "bars": [asdict(bar) | {"met": bar.met, "of": row.text} for row in lines for bar in row.bars],
            "failures": session.failures,
        }
        chosen.json.write_text(json.dumps(record, indent=1))
    return 1 if chosen.check and not all(bar.met for bar in bars) else 0
