# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Benchmark known: what it costs that a cache takes known readers only, beside one that takes everybody.

New tokens: CPU seconds of the server for calls with a token that it has not seen, above those with one that it has.
GetFlightInfo: the median over one connection by TLS, with a token and without. First batch: over new connections, at a
round trip of 20 ms, of which TLS takes one more for each connection.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pyarrow.flight as fl
from lake import Lake
from readers import Readers, bearer
from take import table

from benchlib.network import LOOPBACK, Network, NoNetworkError, Place
from benchlib.process import Server
from kubeflow_datacache import DataCache, World

TOKENS, CALLS, TURNS = (
    10_000,
    200,
    20,
)  # new tokens; calls of GetFlightInfo in a turn; turns, in which subjects alternate
ROUND_TRIP = 0.020
# CPU seconds of TOKENS new tokens; ms above GetFlightInfo without a token; ms above a first batch in plain text
TOKENS_BAR, ANSWER_BAR, FIRST_BAR = 2.0, 0.02, 2e3 * ROUND_TRIP + 3
SHARD = fl.FlightDescriptor.for_path("0", "1")


class Subjects:
    """Servers of one table: one that takes everybody, in plain text and by TLS, and one that takes known readers."""

    def __init__(self, stack: ExitStack, binary: Path, folder: Path, metadata: str, place: Place) -> None:
        self.readers = Readers(folder)
        (folder / "ca.crt").write_bytes(self.readers.roots)
        (folder / "token").write_text(self.readers.token())
        command = [*place.before, str(binary), "local", "--metadata", metadata, "--nodes", "1", "--http", ""]
        command += ["--listen", f"{place.host}:0"]

        def start(name: str, environment: dict[str, str]) -> Server:
            return stack.enter_context(Server(name, command, folder / f"{name}.log", environment=environment))

        self.known = start("known", self.readers.env)
        self.anyone = start("anyone", {"TLS_AUTHORITY": self.readers.env["TLS_AUTHORITY"]})

    def connect(self, server: Server) -> fl.FlightClient:
        """A client by TLS."""
        roots = self.readers.roots
        return fl.connect(
            server.uri.replace("grpc://", "grpc+tls://"), tls_root_certs=roots, override_hostname="datacache"
        )


def tokens(subjects: Subjects) -> tuple[float, float]:
    """CPU seconds of the server for calls with new tokens, and for as many with one that it knows."""
    used = []
    with subjects.connect(subjects.known) as client:
        for sent in ([subjects.readers.token(jti=str(i)) for i in range(TOKENS)], [subjects.readers.token()] * TOKENS):
            options = [fl.FlightCallOptions(headers=bearer(token)) for token in sent]
            before = subjects.known.cpu()
            for each in options:
                client.get_flight_info(SHARD, each)
            used.append(subjects.known.cpu() - before)
    return used[0], used[1]


def answers(subjects: Subjects) -> tuple[float, float]:
    """Milliseconds of GetFlightInfo by TLS, with a token and without."""
    took: dict[str, list[float]] = {"known": [], "anyone": []}
    options = {
        "known": fl.FlightCallOptions(headers=bearer(subjects.readers.token())),
        "anyone": fl.FlightCallOptions(),
    }
    with subjects.connect(subjects.known) as known, subjects.connect(subjects.anyone) as anyone:
        clients = {"known": known, "anyone": anyone}
        for turn in range(TURNS + 1):  # turn 0 warms up and is not counted
            for name in list(clients)[:: 1 if turn % 2 else -1]:
                own, option, times = clients[name], options[name], []
                for _ in range(CALLS):
                    began = time.perf_counter()
                    own.get_flight_info(SHARD, option)
                    times.append(1e3 * (time.perf_counter() - began))
                if turn:
                    took[name].append(statistics.median(times))
    return statistics.median(took["known"]), statistics.median(took["anyone"])


def first_batches(endpoints: Sequence[str], folder: str) -> dict[str, dict[str, float]]:
    """Milliseconds until a first batch, of the known cache by TLS and of the other in plain text.

    epoch: of an epoch of a loader that knows its cache, over a connection to the head and one to the data node. start:
    of a new DataCache, which asks the head twice, over a connection each.
    """
    environments = {
        "known": {"DATACACHE_ENDPOINT": endpoints[0], "DATACACHE_CREDENTIALS": folder},
        "anyone": {"DATACACHE_ENDPOINT": endpoints[1]},
    }
    took: dict[str, dict[str, list[float]]] = {name: {"start": [], "epoch": []} for name in environments}
    for turn in range(TURNS + 1):  # turn 0 warms up and is not counted
        for name in list(environments)[:: 1 if turn % 2 else -1]:
            began = time.perf_counter()
            with DataCache.from_env(environments[name]) as cache:
                loader = cache.loader(global_batch_size=64, shuffle=False, prefetch_bytes=1 << 20, world=World(0, 1))
                for of in ("start", "epoch"):
                    next(iter(loader))
                    if turn:
                        took[name][of].append(1e3 * (time.perf_counter() - began))
                    began = time.perf_counter()
    return {name: {of: statistics.median(times) for of, times in own.items()} for name, own in took.items()}


def distant(options: argparse.Namespace, folder: Path, metadata: str) -> dict[str, dict[str, float]]:
    """First batches over an emulated network."""
    subprocess.run(["go", "build", "-o", f"{folder}/", "./test/bench/cmd/netdelay"], check=True)
    with ExitStack() as stack:
        network = stack.enter_context(Network(folder))
        network.set(ROUND_TRIP)
        far = folder / "far"
        far.mkdir()
        subjects = Subjects(stack, options.server, far, metadata, network.servers)
        endpoints = [
            subjects.known.uri.replace("grpc://", "grpc+tls://"),
            subjects.anyone.uri.replace("grpc+tls://", "grpc://"),
        ]
        run = [*network.clients.before, sys.executable, __file__, "--server", str(options.server)]
        run += ["--first", *endpoints, str(far)]
        return json.loads(subprocess.run(run, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])


def main() -> None:
    """Prints the measurements beside their bars; fails if one is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", type=Path, required=True, help="the cacheserver binary")
    parser.add_argument("--first", nargs=3, metavar="ARGUMENT", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.first:
        print(json.dumps(first_batches(options.first[:2], options.first[2])))
        return
    missed = []

    def say(what: str, bar: float, figure: float, unit: str, of: str) -> None:
        good = figure <= bar
        print(f"{what:40} {figure:8.3f} {unit}  <= {bar:6.2f} {'pass' if good else 'MISSED'}  ({of})", flush=True)
        if not good:
            missed.append(what)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        metadata = table(Lake(folder), "2 KB", 0.02).metadata
        with ExitStack() as stack:
            near = folder / "near"
            near.mkdir()
            subjects = Subjects(stack, options.server, near, metadata, LOOPBACK)
            new, again = tokens(subjects)
            say(
                f"{TOKENS} new tokens",
                TOKENS_BAR,
                new - again,
                "CPU-s",
                f"{new:.2f} against {again:.2f} with one token",
            )
            known, anyone = answers(subjects)
            say("GetFlightInfo with a token", ANSWER_BAR, known - anyone, "ms", f"{known:.3f} against {anyone:.3f}")
        try:
            first = distant(options, folder, metadata)
        except NoNetworkError as error:
            print(f"first batch: not measured, as there is no emulated network: {error}")
        else:
            figures = {of: (first["known"][of], first["anyone"][of]) for of in ("epoch", "start")}
            texts = {of: f"{known:.1f} against {anyone:.1f} in plain text" for of, (known, anyone) in figures.items()}
            known, anyone = figures["epoch"]
            say("first batch of an epoch by TLS", FIRST_BAR, known - anyone, "ms", texts["epoch"])
            print(f"first batch of a new DataCache by TLS: {texts['start']}, which is a connection more")
    if missed:
        sys.exit(f"missed: {', '.join(missed)}")


if __name__ == "__main__":
    main()
