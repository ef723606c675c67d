# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The command line of `make bench NAME=servers`: options, preparation, progress, the printed table and its JSON."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from benchlib import cores, decode, latency, machine, report, trainer_cache
from benchlib.arguments import add_server, add_tables, add_trainer, check, counts, words
from benchlib.clients import Clients
from benchlib.measure import READS, STARTS, Bench, expected_seconds
from benchlib.progress import Progress
from benchlib.sample import Sample, Setup
from benchlib.subjects import TRAINER
from benchlib.tables import EPOCHS_ONLY, FILES, Table, ensure

MEASURES = ["load", "cores", "memory", "decode", "stream", "crowd", "network", "latency", "shuffle"]

NOTES = """\
wall, CPU, client: seconds, server CPU-seconds (user and system, all threads) and client CPU-seconds
  per GB (1e9 bytes) of Arrow: medians of {rounds} rounds in which all take turns.
ratio: our CPU over the reference's, the median of the rounds; beside it its extremes.
GB/s: server and clients share this machine's cores, so it is a joint figure.
load: `cacheserver local --nodes {nodes}` from start to ready, less what a start that reads nothing takes (the least of
  {starts} runs of `cacheserver version`), so from about the first byte that it reads; against pqread from start to end
  (Go, bare pqarrow: record reader of 8,192 rows, one file a thread, as many threads as cores, default
  allocator, every batch released at once; or all of them kept to the end, as a cache must, which
  shows what fresh memory costs on this machine), and against Trainer's own data cache (Rust), a head and
  two workers, from start to the head's ready. Page cache warm.
all cores: loads by that many workers (GOMAXPROCS), each in a fresh process. wall x cores is over the CPU; peak is
  VmHWM, the largest of the rounds, over the rows with 32 MiB a worker and 64 MiB. Where others use the machine, wall
  x cores says nothing.
memory: the largest of the rounds, of Trainer's head and workers together; peak is VmHWM, resident is VmRSS
  3 s after ready. Scale 1 is what counts.
decode: BenchmarkColumn of package decode: list<int32> from uncompressed plain pages in memory, lists of 512 and
  of 1 to 40 values; the reference is a copy of the values.
stream: the whole table, split over the clients, {reads} times a turn, all read by the same pyarrow client (read_chunk,
  connect included). The references hold the same files' rows in batches of about 4 MiB: pyarrow's
  RecordBatchStream (C++), our own server over grpc-go (--transport grpc), arrow-go's flight.Writer
  (grpc-go, default options), Trainer's own data cache (in batches of its own, up to 1,024 rows), and a Go
  server that writes the bare buffers to TCP, 512 KiB a write,
  to a Python reader.
  The lines of TLS are ours over TLS, against the C++ server and our own over grpc-go with TLS, and our own without;
  then our loader against that pyarrow client, of our server, by the client's CPU.
many clients: of one data node; all at once, and each, be they 64 or 2, reads half of the table; connect included.
  Then our loader in as many processes, h2load's clients, all in one process, and as many processes that read plain TCP.
  Ratios are of wall times, but for the pyarrow server's, which is of CPU.
network: two network namespaces and a delay (cmd/netdelay); one data node, as one stream; case: round trip and clients,
  which each read a share of the table. 20 ms also with 8 clients, after 2 s without a byte (pause; one connection,
  the second of two reads) and with 0.1 % of packets lost (loss). Ratios are of wall times, but for the lines "CPU".
latency: {calls} shards of {small} rows, one after the other, over connections that are kept; medians.
shuffled epoch: kind epoch, world 1, global batch 1024, tail keep, one client, {reads} times a turn."""


def options(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="test/bench/run",
        description="Measures datacache beside its references and prints one table.",
    )
    add_tables(parser)
    add_server(parser)
    add_trainer(parser)
    parser.add_argument("--reps", type=int, default=5, help="rounds of every measurement (default 5)")
    parser.add_argument("--only", type=words(MEASURES), default=MEASURES, help=f"of {','.join(MEASURES)}")
    parser.add_argument(
        "--clients", type=counts, default=[1, 2, 8], help="numbers of clients that stream (default 1,2,8)"
    )
    parser.add_argument("--references-only", action="store_true", help="measure without our server")
    parser.add_argument("--json", type=Path, help="also write machine, samples and lines to this file")
    parser.add_argument("--check", action="store_true", help="exit 1 when a bar is missed")
    chosen = parser.parse_args(given)
    check(parser, chosen, server=not chosen.references_only)
    if chosen.reps < 1:
        parser.error("--reps must be at least 1")
    return chosen


def build_tools(into: Path) -> None:
    into.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["go", "build", "-o", f"{into}/", "./test/bench/cmd/..."],
        cwd=machine.REPOSITORY,
        check=True,
    )
    decode.build(into)


def prepare(chosen: argparse.Namespace, progress: Progress) -> tuple[Setup, list[Table]]:
    """Builds the reference programs and creates missing tables."""
    data: Path = chosen.data.resolve()
    setup = Setup(
        server=None if chosen.references_only else chosen.server.resolve(),
        trainer=trainer_cache.programs(chosen.trainer_cache),
        tools=data / "bin",
        logs=data / "logs",
        only=chosen.only,
        clients=chosen.clients,
        nodes=chosen.nodes,
        rounds=chosen.reps,
    )
    setup.logs.mkdir(parents=True, exist_ok=True)
    if not setup.trainer:
        progress(f"no lines of {TRAINER}, which is not built: `make trainer-cache`, then --trainer-cache DIR")
    progress("building the reference programs")
    build_tools(setup.tools)
    progress("tables: made by pyiceberg once, about a minute at scale 1, and then kept")
    return setup, [ensure(name, chosen.scale, data, progress) for name in chosen.tables]


def measure(
    setup: Setup, tables: list[Table], sized: list[Table], progress: Progress
) -> tuple[list[Sample], list[str]]:
    """Returns all samples and all failures.

    A table that fails does not stop the measurement of others. SIGINT and SIGTERM end the measurement early.
    """
    progress.expect(sum(expected_seconds(setup.of(t), t) for t in tables))
    samples: list[Sample] = []
    errors: list[str] = []
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if setup.server and sized:
            samples += cores.cores(setup, sized, progress)
        if setup.server and setup.wants("decode"):
            samples += decode.decode(setup.tools, setup.rounds, progress)
        with Clients(max(setup.clients)) as pool:
            for table in tables:
                try:
                    for sample in Bench(setup.of(table), pool, progress).table(table):
                        samples.append(sample)
                except RuntimeError as error:
                    errors.append(f"{table.name} stopped: {error}")
                    progress(errors[-1])
    except KeyboardInterrupt:
        errors.append("stopped by a signal: what was not measured until then is not in the table")
    return samples, errors


def notes(chosen: argparse.Namespace) -> str:
    return NOTES.format(
        rounds=chosen.reps,
        nodes=chosen.nodes,
        reads=READS,
        calls=latency.CALLS,
        small=latency.ROWS,
        starts=STARTS,
    )


def main(given: list[str]) -> int:
    chosen = options(given)
    progress = Progress()
    about = machine.describe() | {"load average before": machine.load_average()}
    setup, tables = prepare(chosen, progress)
    names = [t.name for t in tables if t.name not in EPOCHS_ONLY] if setup.wants("cores") else []
    sized = cores.tables(names, chosen.scale, chosen.data.resolve(), progress)
    samples, errors = measure(setup, tables, sized, progress)
    about["load average after"] = machine.load_average()
    progress("done")
    lines = report.rows(samples, tables, chosen.only)
    failed = [row for row in lines if row.passed is False]

    print("datacache bench:", ", ".join(f"{key} {value}" for key, value in about.items()))
    for t in tables:
        sizes = f"{t.arrow_bytes / 1e6:,.1f} MB of Arrow, {t.parquet_bytes / 1e6:,.1f} MB of Parquet"
        print(f"{t.name}: {t.rows:,} rows, {sizes} (zstd) in {FILES} files")
    print(f"\n{report.text(lines)}\n\n{notes(chosen)}")
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
