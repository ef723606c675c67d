# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The command: options, preparation, progress, the printed table and its JSON."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from benchlib import machine, report
from benchlib.clients import Clients
from benchlib.measure import Bench, Sample, Setup, expected_seconds
from benchlib.tables import FILES, SHAPES, Table, ensure

MEASURES = ["load", "memory", "stream", "shuffle"]

NOTES = """\
wall, CPU, client: seconds, server CPU-seconds (user and system, all threads) and client CPU-seconds
  per GB (1e9 bytes) of Arrow: medians of {rounds} rounds in which all take turns.
ratio: our CPU over the reference's; beside it its extremes over the rounds.
GB/s: server and clients share this machine's cores, so it is a joint figure.
load: `cacheserver local --nodes {nodes}` from start to ready, against pqread from start to end (Go,
  bare pqarrow: record reader of 8,192 rows, one file a thread, as many threads as cores, default
  allocator, every batch released at once; or all of them kept to the end, as a cache must, which
  shows what fresh memory costs on this machine). Page cache warm.
memory: the largest of the rounds; peak is VmHWM, resident is VmRSS 3 s after ready. The bar on the
  peak is held for tables from 500 MB, the other bars at any size; scale 1 is what counts.
stream: the whole table, split over the clients, all read by the same pyarrow client (read_chunk,
  connect included). The references hold the same files' rows in batches of about 4 MiB: pyarrow's
  RecordBatchStream (C++), our own server over grpc-go (--transport grpc), arrow-go's flight.Writer
  (grpc-go, default options), and a Go server that writes the bare buffers to TCP, 512 KiB a write,
  to a Python reader.
shuffled epoch: kind epoch, world 1, global batch 1024, tail keep, one client."""


class Progress:
    """Lines on stderr with the minutes gone and the minutes expected in all."""

    def __init__(self) -> None:
        self._start, self._expected = time.perf_counter(), 0.0

    def expect(self, seconds: float) -> None:
        """The rest will take this long."""
        self._expected = time.perf_counter() - self._start + seconds

    def __call__(self, message: str) -> None:
        gone = (time.perf_counter() - self._start) / 60
        expected = f" of about {self._expected / 60:.1f}" if self._expected else ""
        print(f"[{gone:4.1f}{expected} min] {message}", file=sys.stderr, flush=True)


def options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="test/bench/run",
        description="Measures datacache beside its references and prints one table.",
    )
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    parser.add_argument(
        "--scale",
        type=float,
        default=1.0,
        help="size of the tables; 1 is about 1 GB of Arrow each (default)",
    )
    parser.add_argument("--reps", type=int, default=3, help="rounds of every measurement (default 3)")
    parser.add_argument("--only", type=words(MEASURES), default=MEASURES, help=f"of {','.join(MEASURES)}")
    parser.add_argument("--tables", type=words(list(SHAPES)), default=list(SHAPES), help=f"of {','.join(SHAPES)}")
    parser.add_argument("--clients", type=counts, default=[1, 2, 8], help="numbers of clients (default 1,2,8)")
    parser.add_argument("--nodes", type=int, default=2, help="data nodes of our server (default 2)")
    parser.add_argument("--server", type=Path, default=machine.REPOSITORY / "bin" / "cacheserver")
    parser.add_argument("--references-only", action="store_true", help="measure without our server")
    parser.add_argument(
        "--data",
        type=Path,
        default=Path(cache) / "datacache" / "bench",
        help="where the tables are kept (2.8 GB at scale 1; default %(default)s)",
    )
    parser.add_argument("--json", type=Path, help="also write machine, samples and lines to this file")
    parser.add_argument("--check", action="store_true", help="exit 1 when a bar is missed")
    chosen = parser.parse_args(arguments)
    if chosen.reps < 1 or chosen.scale <= 0 or chosen.nodes < 1:
        parser.error("--reps and --nodes must be at least 1, --scale above 0")
    if not chosen.references_only and not chosen.server.exists():
        parser.error(f"{chosen.server} is not there: run `make build`, or give --references-only")
    return chosen


def words(allowed: list[str]) -> Callable[[str], list[str]]:
    def parse(value: str) -> list[str]:
        given = value.split(",")
        if unknown := [w for w in given if w not in allowed]:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(allowed)}")
        return [w for w in allowed if w in given]

    return parse


def counts(value: str) -> list[int]:
    numbers = [int(word) for word in value.split(",")]
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError("want numbers from 1, with commas between them")
    return numbers


def build_tools(into: Path) -> None:
    into.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["go", "build", "-o", f"{into}/", "./test/bench/cmd/..."],
        cwd=machine.REPOSITORY,
        check=True,
    )


def prepare(chosen: argparse.Namespace, progress: Progress) -> tuple[Setup, list[Table]]:
    """Builds the reference programs and makes the tables that are not there yet."""
    data: Path = chosen.data.resolve()
    setup = Setup(
        server=None if chosen.references_only else chosen.server.resolve(),
        tools=data / "bin",
        logs=data / "logs",
        only=chosen.only,
        clients=chosen.clients,
        nodes=chosen.nodes,
        rounds=chosen.reps,
    )
    setup.logs.mkdir(parents=True, exist_ok=True)
    progress("building the reference programs")
    build_tools(setup.tools)
    progress("tables: made by pyiceberg once, about a minute at scale 1, and then kept")
    return setup, [ensure(name, chosen.scale, data, progress) for name in chosen.tables]


def measure(setup: Setup, tables: list[Table], progress: Progress) -> tuple[list[Sample], list[str]]:
    """All samples, and what went wrong: a table that fails does not keep the others from being measured."""
    progress.expect(sum(expected_seconds(setup, t.gigabytes) for t in tables))
    samples: list[Sample] = []
    errors: list[str] = []
    with Clients(max(setup.clients)) as pool:
        bench = Bench(setup, pool, progress)
        for table in tables:
            try:
                for sample in bench.table(table):
                    samples.append(sample)
            except RuntimeError as error:
                errors.append(f"{table.name} stopped: {error}")
                progress(errors[-1])
    return samples, errors


def main(arguments: list[str]) -> int:
    chosen = options(arguments)
    progress = Progress()
    about = machine.describe() | {"load average before": machine.load_average()}
    setup, tables = prepare(chosen, progress)
    samples, errors = measure(setup, tables, progress)
    about["load average after"] = machine.load_average()
    progress("done")
    lines = report.rows(samples, tables, chosen.only)
    failed = [row for row in lines if row.passed is False]

    print("datacache bench:", ", ".join(f"{key} {value}" for key, value in about.items()))
    for t in tables:
        sizes = f"{t.arrow_bytes / 1e6:,.1f} MB of Arrow, {t.parquet_bytes / 1e6:,.1f} MB of Parquet"
        print(f"{t.name}: {t.rows:,} rows, {sizes} (zstd) in {FILES} files")
    print(f"\n{report.text(lines)}\n\n{NOTES.format(rounds=chosen.reps, nodes=chosen.nodes)}")
    if held := sum(row.passed is not None for row in lines):
        print(f"{held - len(failed)} of {held} bars held")
    if chosen.json:
        record = {
            "machine": about,
            "scale": chosen.scale,
            "tables": [asdict(t) for t in tables],
            "rows": [asdict(row) | {"passed": row.passed} for row in lines],
            "samples": [asdict(s) for s in samples],
            "errors": errors,
        }
        chosen.json.write_text(json.dumps(record, indent=1))
    for error in errors:
        print(error, file=sys.stderr)
    return 1 if errors or (chosen.check and failed) else 0
