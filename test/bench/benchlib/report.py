# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Computes the table from samples: medians of the rounds and of their ratios, and limits ("bars")."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from statistics import median
from typing import TypeAlias

from benchlib.cores import CORES, PROCESS_BYTES, WORKER_BYTES, allowed, workers_of
from benchlib.crowd import FEW, FEW_BARE, FEW_LOADERS, FEW_PLAIN, MANY, MANY_BARE, MANY_LOADERS, MANY_PLAIN
from benchlib.decode import COPY
from benchlib.distance import CASES
from benchlib.measure import CLUMPS, PQARROW, READERS, SEQUENTIAL
from benchlib.sample import Sample
from benchlib.subjects import (
    ENCRYPTED,
    GRPC_GO,
    LOADER,
    LOADER_TLS,
    OURS,
    PYARROW,
    PYARROW_TLS,
    REFERENCES,
    TCP,
    TLS,
    TLS_REFERENCES,
    TRAINER,
)
from benchlib.tables import Table

# Limits of a stream's server CPU relative to each reference, for one and two clients.
STREAM_BARS = {PYARROW: 1.05, GRPC_GO: 0.6, TRAINER: 1.0}
# The same with TLS, relative to a C++ server with TLS.
TLS_BAR = 0.9
# Our loader's CPU with TLS, relative to pyarrow's client of the same server.
LOADER_TLS_BAR = 1.0
STREAM_BAR_CASES = ("1 client", "2 clients")
# Limits of a load's CPU relative to a plain pqarrow read.
LOAD_BARS = {"tokens": 0.5, "tabular": 0.75, "images": 0.8}
# Limit of a load's CPU and memory relative to Trainer's own cache.
TRAINER_BAR = 1.0
# Limits of a shuffled epoch's wall time relative to the sequential stream, for tables with rows of 256 bytes and more:
# 80, 95 and 50 % of its rate, and 90 % with clumps.
SHUFFLE_BARS = {
    "clump 1": {"tokens": 1 / 0.8, "images": 1 / 0.95, "reviews": 1 / 0.5},
    "clump 64": dict.fromkeys(("tokens", "images", "reviews"), 1 / 0.9),
}
# For 64 clients: server CPU relative to the C++ server, and the time of the last client relative to the first.
CROWD_BAR, FAIRNESS_BAR = 1.05, 1.2
# Limits for streams over a network: wall time relative to the C++ server and to grpc-go, with 5 % for the variation
# between two reads of one server; server CPU relative to the C++ server, up to this round-trip time.
NETWORK_BAR, NETWORK_CPU_BAR, NETWORK_CPU_MILLISECONDS = 1.05, 1.6, 0.5
# Time of list<int32> from plain pages relative to a copy of the bytes, by list length.
DECODE_BARS = {"512": 2.0}
# Limits of the medians, in seconds.
LATENCY_BARS = {"GetFlightInfo": 0.5e-3, "first batch": 0.7e-3}
MEMORY_SLACK = 64e6
RESIDENT_BAR = 1.05
# Wall time of a load times cores relative to its CPU time, for tables of at least CORES_FROM GB.
CORES_BAR, CORES_FROM = 1.15, 0.5


@dataclass(frozen=True)
class Figures:
    """Medians of a subject's rounds: wall, server CPU and client CPU seconds per GB; GB/s."""

    wall: float
    cpu: float
    client: float
    rate: float

    @classmethod
    def of(cls, samples: list[Sample]) -> Figures:
        return cls(
            wall=median(s.wall / s.gigabytes for s in samples),
            cpu=median(s.server_cpu / s.gigabytes for s in samples),
            client=median(s.client_cpu / s.gigabytes for s in samples),
            rate=median(s.gigabytes / s.wall for s in samples),
        )

    def text(self) -> str:
        client = f"{self.client:.2f}" if self.client else "-"
        return f"{self.wall:7.2f}{self.cpu:7.2f}{client:>7}{self.rate:7.2f}"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A line of the table.

    ratio is ours relative to the reference; low and high are its minimum and maximum over the rounds.
    """

    section: str
    case: str
    table: str
    against: str
    ours: str
    reference: str
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    bar: float | None = None

    @property
    def passed(self) -> bool | None:
        """Whether the limit is met; None if there is no limit or no measurement."""
        if self.bar is None or self.ratio is None:
            return None
        return self.ratio <= self.bar

    def text(self) -> str:
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}"
        rounds = "" if self.low is None or self.high is None else f"{self.low:.2f}-{self.high:.2f}"
        bar = "" if self.bar is None else f"<= {self.bar:.2f}"
        verdict = {True: "pass", False: "FAIL", None: ""}[self.passed]
        line = f"{self.case:<14}{self.table:<9}{self.against:<23}|{self.ours:>28} "
        line += f"|{self.reference:>28} |{ratio:>6}{rounds:>12}{bar:>9} {verdict}"
        return line.rstrip()


HEADER = "\n".join(
    [
        f"{'':<46}|{'ours':>7}{'':>22}|{'the reference':>16}{'':>13}|{'CPU':>6}",
        f"{'':<14}{'table':<9}{'against':<23}"
        + f"|{'wall':>7}{'CPU':>7}{'client':>7}{'GB/s':>7} " * 2
        + f"|{'ratio':>6}{'rounds':>12}{'bar':>9}",
    ]
)


# Samples by measure, case, table and subject.
Groups: TypeAlias = dict[tuple[str, str, str, str], list[Sample]]


def rows(samples: Iterable[Sample], tables: list[Table], only: list[str]) -> list[Row]:
    """The lines of the table, section by section."""
    groups: Groups = {}
    for s in samples:
        groups.setdefault((s.measure, s.case, s.table, s.subject), []).append(s)
    names = [t.name for t in tables]
    out: list[Row] = []
    if "load" in only:
        out += load(groups, names)
    out += all_cores(groups)
    if "memory" in only:
        for table in tables:
            out += memory(table, *pair(groups, "load", "", table.name, TRAINER))
    out += (
        decode(groups)
        + stream(groups, names)
        + many_clients(groups, names)
        + network(groups, names)
        + latency(groups, names)
        + shuffle(groups, names)
    )
    return [row for row in out if row.ours or row.reference]


def pair(groups: Groups, measure: str, case: str, table: str, reference: str) -> tuple[list[Sample], list[Sample]]:
    """Our samples and those of a reference."""
    ours, theirs = (groups.get((measure, case, table, subject), []) for subject in (OURS, reference))
    return ours, theirs


def load(groups: Groups, tables: list[str]) -> list[Row]:
    out = []
    for t in tables:
        bars = {PQARROW: LOAD_BARS.get(t), TRAINER: TRAINER_BAR}
        for name in (*READERS, TRAINER):
            ours, theirs = pair(groups, "load", "", t, name)
            if theirs or name != TRAINER:
                out.append(compare(Line("Load", "load", t, name), ours, theirs, bars.get(name)))
    return out


def all_cores(groups: Groups) -> list[Row]:
    """Lines on the use of all cores during loads, and their peak memory."""
    out = []
    for (measure, case, table, _), samples in groups.items():
        if measure != "cores":
            continue
        busy = min(workers_of(samples[0]), CORES)
        bar = CORES_BAR if samples[0].gigabytes >= CORES_FROM else None
        ratios = [s.wall * busy / s.server_cpu for s in samples]
        line = Line("All cores", case, table, "wall x cores / CPU")
        wall_text, cpu_text = (
            f"{median(times):.2f} s" for times in zip(*((s.wall, s.server_cpu) for s in samples), strict=True)
        )
        out.append(held(line, f"wall {wall_text}", f"CPU {cpu_text}", ratios, bar))
        peak, limit = max(s.peak_rss for s in samples), allowed(samples[0])
        ratios = [s.peak_rss / limit for s in samples]
        line = Line("All cores", case, table, "peak / what it may be")
        out.append(held(line, f"{peak / 1e6:,.0f} MB", f"{limit / 1e6:,.0f} MB", [max(ratios)], 1.0))
    return out


def decode(groups: Groups) -> list[Row]:
    """Lines of the benchmark of package decode: decoding pages compared with copying the same bytes."""
    lists = dict.fromkeys(t for measure, _, t, _ in groups if measure == "decode")
    out = []
    for t in lists:
        sides = pair(groups, "decode", "", t, COPY)
        out.append(compare(Line("Decode", "plain", t, COPY), *sides, DECODE_BARS.get(t), wall))
    return out


def stream(groups: Groups, tables: list[str]) -> list[Row]:
    out = []
    for case in dict.fromkeys(case for measure, case, _, _ in groups if measure == "stream"):
        for t in tables:
            for name in REFERENCES:
                if name in ENCRYPTED:
                    continue
                ours, theirs = pair(groups, "stream", case, t, name)
                if name == TRAINER and not theirs:
                    continue  # measured for some tables only
                bar = STREAM_BARS.get(name) if case in STREAM_BAR_CASES else None
                out.append(compare(Line("Stream", case, t, name), ours, theirs, bar))
            out += encrypted(groups, case, t)
    return out


def encrypted(groups: Groups, case: str, table: str) -> list[Row]:
    """Our server with TLS compared with other servers and with itself without; our loader with pyarrow's client."""
    ours = groups.get(("stream", case, table, TLS), [])
    out = []
    for name in TLS_REFERENCES:
        theirs = groups.get(("stream", case, table, name), [])
        if ours or (theirs and name in ENCRYPTED):
            against = f"TLS: {name.removesuffix(' over TLS')}" if name in ENCRYPTED else "TLS: our own, plain"
            bar = TLS_BAR if name == PYARROW_TLS else None
            out.append(compare(Line("Stream", case, table, against), ours, theirs, bar))
    if loaders := groups.get(("stream", case, table, LOADER_TLS), []):
        line = Line("Stream", case, table, "TLS: loader to pyarrow")
        out.append(compare(line, loaders, ours, LOADER_TLS_BAR, client_cpu))
    return out


def many_clients(groups: Groups, tables: list[str]) -> list[Row]:
    """Many clients compared with few, and the last client compared with the first."""
    out = []
    for t in tables:
        many = groups.get(("crowd", MANY, t, OURS), [])
        out.append(many_to_few(groups, t, OURS, MANY, FEW))
        theirs = groups.get(("crowd", MANY, t, PYARROW), [])
        out.append(compare(Line("Many clients", MANY, t, PYARROW), many, theirs, CROWD_BAR))
        if many:
            last, first = median(s.last for s in many), median(s.first for s in many)
            line = Line("Many clients", MANY, t, "the first one done")
            out.append(held(line, f"{last:.2f} s", f"{first:.2f} s", [s.last / s.first for s in many], FAIRNESS_BAR))
        out.append(many_to_few(groups, t, OURS, MANY_LOADERS, FEW_LOADERS))
        out.append(many_to_few(groups, t, OURS, MANY_PLAIN, FEW_PLAIN))
        out.append(many_to_few(groups, t, TCP, MANY_BARE, FEW_BARE))
    return out


def many_to_few(groups: Groups, table: str, subject: str, many: str, few: str) -> Row:
    """The time per GB of many clients of one kind relative to few."""
    line = Line("Many clients", many, table, f"{few}, by wall time")
    of_many, of_few = (groups.get(("crowd", case, table, subject), []) for case in (many, few))
    return compare(line, of_many, of_few, None, wall_per_gb)


def network(groups: Groups, tables: list[str]) -> list[Row]:
    """Streams over a network: our server and our loader compared with other servers."""
    out = []
    for t in tables:
        for case in CASES:
            alone = case.clients == 1 and not case.what
            for ours in (OURS, LOADER):
                for name in (PYARROW, GRPC_GO):
                    mine, other = [groups.get(("network", case.name, t, subject), []) for subject in (ours, name)]
                    if not (mine and other):
                        continue
                    bar = NETWORK_BAR if alone else None
                    label = case.name if ours == OURS else f"{case.name} loader"
                    out.append(compare(Line("Network", label, t, name), mine, other, bar, wall_per_gb))
                    if ours == OURS and name == PYARROW and alone:
                        bar = NETWORK_CPU_BAR if case.milliseconds <= NETWORK_CPU_MILLISECONDS else None
                        out.append(compare(Line("Network", f"{case.name} CPU", t, name), mine, other, bar, cpu_per_gb))
    return out


def latency(groups: Groups, tables: list[str]) -> list[Row]:
    """Median latencies of small calls compared with the limit and with other servers."""
    out = []
    for case, limit in LATENCY_BARS.items():
        for t in tables:
            ours = groups.get(("latency", case, t, OURS), [])
            if ours:
                line = Line("Latency", case, t, "the bar")
                out.append(held(line, milliseconds(ours), f"{limit * 1e3:.2f} ms", [s.wall / limit for s in ours], 1.0))
            for name in (PYARROW, TRAINER):
                if theirs := groups.get(("latency", case, t, name), []):
                    row = compare(Line("Latency", case, t, name), ours, theirs, None, wall)
                    out.append(replace(row, ours=milliseconds(ours), reference=milliseconds(theirs)))
    return out


def milliseconds(samples: list[Sample]) -> str:
    return f"{median(s.wall for s in samples) * 1e3:.2f} ms" if samples else ""


def shuffle(groups: Groups, tables: list[str]) -> list[Row]:
    out = []
    for t in tables:
        sequential = groups.get(("shuffle", SEQUENTIAL, t, OURS), [])
        for clump in CLUMPS:
            case = f"clump {clump}"
            ours = groups.get(("shuffle", case, t, OURS), [])
            out.append(compare(Line("Shuffled epoch", case, t, "our sequential stream"), ours, sequential))
            line = Line("Shuffled epoch", case, t, "the same, by wall time")
            out.append(compare(line, ours, sequential, SHUFFLE_BARS[case].get(t), wall))
    return out


@dataclass(frozen=True)
class Line:
    """The labels of a table line."""

    section: str
    case: str
    table: str
    against: str


def cpu(s: Sample) -> float:
    """The server's CPU-seconds."""
    return s.server_cpu


def client_cpu(s: Sample) -> float:
    """The client's CPU-seconds."""
    return s.client_cpu


def cpu_per_gb(s: Sample) -> float:
    """The server's CPU-seconds per GB."""
    return s.server_cpu / s.gigabytes


def wall(s: Sample) -> float:
    """Wall seconds."""
    return s.wall


def wall_per_gb(s: Sample) -> float:
    """Wall seconds per GB."""
    return s.wall / s.gigabytes


def compare(
    line: Line,
    ours: list[Sample],
    reference: list[Sample],
    bar: float | None = None,
    cost: Callable[[Sample], float] = cpu,
) -> Row:
    """A line that compares our server's cost with a reference's. Either may be missing."""
    row = {
        **vars(line),
        "ours": Figures.of(ours).text() if ours else "",
        "reference": Figures.of(reference).text() if reference else "",
    }
    if not (ours and reference):
        return Row(**row)
    # A ratio per round, as other load on the machine differs between rounds.
    ratios = [cost(a) / cost(b) for a, b in zip(ours, reference, strict=False)]
    return Row(**row, ratio=median(ratios), low=min(ratios), high=max(ratios), bar=bar)


def held(line: Line, ours: str, reference: str, ratios: list[float], bar: float | None) -> Row:
    """A line from one ratio per round."""
    return Row(
        **vars(line), ours=ours, reference=reference, ratio=median(ratios), low=min(ratios), high=max(ratios), bar=bar
    )


def memory(table: Table, ours: list[Sample], trainers: list[Sample]) -> list[Row]:
    """Our server's peak and resident memory (largest round) compared with the Arrow bytes and Trainer's cache."""
    if not ours:
        return []
    size = table.arrow_bytes
    peak_bar = 1 + (CORES * WORKER_BYTES + PROCESS_BYTES) / size
    peak, resident = ([s.peak_rss for s in ours], [s.resident_rss for s in ours])
    rows = [
        of_memory(Line("Memory", "peak RSS", table.name, "bytes of Arrow"), peak, size, peak_bar),
        of_memory(
            Line("Memory", "resident", table.name, "bytes of Arrow"), resident, size, RESIDENT_BAR + MEMORY_SLACK / size
        ),
    ]
    if trainers:
        most = max(s.peak_rss for s in trainers)
        rows.append(of_memory(Line("Memory", "peak RSS", table.name, TRAINER), peak, most, TRAINER_BAR))
        most = max(s.resident_rss for s in trainers)
        rows.append(of_memory(Line("Memory", "resident", table.name, TRAINER), resident, most, TRAINER_BAR))
    return rows


def of_memory(line: Line, used: list[int], size: int, bar: float | None) -> Row:
    """A line of bytes; uses the round with the largest value."""
    return Row(
        **vars(line),
        ours=f"{max(used) / 1e6:,.0f} MB",
        reference=f"{size / 1e6:,.0f} MB",
        ratio=max(used) / size,
        low=min(used) / size,
        high=max(used) / size,
        bar=bar,
    )


def text(lines: list[Row]) -> str:
    """Formats the table with a heading per section."""
    out, section = [HEADER], ""
    for row in lines:
        if row.section != section:
            section = row.section
            out.append(f"-- {section} ".ljust(139, "-"))
        out.append(row.text())
    return "\n".join(out)
