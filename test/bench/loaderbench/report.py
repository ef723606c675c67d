# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Computes the printed table from samples: medians and extremes of the rounds, and limits ("bars")."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median

from loaderbench.case import ABOUT
from loaderbench.job import EPOCH
from loaderbench.measure import OURS, Sample, order

# Limits in CPU-seconds per GB of tensors, in batches of 128 without workers, by table and whether it is shuffled.
CPU_BARS = {
    ("tokens", False): 1.0,
    ("tokens", True): 1.3,
    ("tabular", False): 1.5,
    ("tabular", True): 3.0,
    ("images", False): 0.8,
    ("images", True): 1.0,
}
# With memory for a part of the table, shuffled: limit of CPU-seconds per GB, and of the disk's speed the part that must
# arrive; tokens are read 1.17 times an epoch, as the chunks that a window of memory needs do not fit it.
SPILL_BARS = {("tokens", 0.5): (1.2, 0.7 / 1.17), ("images", 0.5): (1.2, 0.7)}
# How many times as fast as the best of the others that shuffle every row.
TIMES_BAR = {("tokens", 0.5): 5.0}
# The same for the client only, with two workers.
WORKER_BARS = {("tokens", False): 1.5}
# Limit in seconds and in CPU-seconds from loading a state to the first batch.
RESUME_BAR = 0.1


@dataclass(frozen=True)
class Spread:
    """Median, minimum and maximum of a figure over several rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, samples: list[Sample], figure: Callable[[Sample], float]) -> Spread:
        values = [figure(s) for s in samples]
        return cls(median(values), min(values), max(values))


@dataclass(frozen=True)
class Bar:
    """An upper limit of a figure."""

    what: str
    figure: float
    limit: float

    @property
    def met(self) -> bool:
        return self.figure <= self.limit

    def text(self) -> str:
        return f"{self.what} {'met' if self.met else 'MISSED'}"


@dataclass(frozen=True)
class Row:
    """A line of the table and its limits."""

    section: str
    group: str
    text: str
    bars: list[Bar]

    def line(self) -> str:
        if not self.bars:
            return self.text
        limits = " ".join(dict.fromkeys(f"<= {bar.limit:g}" for bar in self.bars))
        return f"{self.text} {limits:>7}  {', '.join(bar.text() for bar in self.bars)}"


EPOCH_SECTION = "Epochs"
RESUME_SECTION = "Resume in mid-epoch, shuffled, 0 workers"
HEADERS = {
    EPOCH_SECTION: "\n".join(
        [
            f"{'':<44}|{'CPU-s/GB':>10}{'':>31}|{'wall':>7}{'':>18}|{'of the':>7} |",
            f"{'table':<9}{'order':<9}{'workers':>7} {'loader':<18}|{'client':>8}{'server':>8}{'total':>8}"
            f"{'rounds':>16} |{'s/GB':>7}{'GB/s':>6}{'rows/s':>11} |{'epoch':>7} | order     bar",
        ]
    ),
    RESUME_SECTION: "\n".join(
        [
            f"{'':<28}|{'to the first batch, seconds':>31}{'':>22}|{'after of':>9} |",
            f"{'table':<9} {'loader':<18}|{'wall':>8}{'rounds':>14}{'client':>9}{'server':>8}{'rounds':>13} |"
            f"{'the epoch':>9} | {'batch':<6}|    bar",
        ]
    ),
}


def rows(samples: Iterable[Sample]) -> list[Row]:
    """The lines of the table, in the order of the samples."""
    groups: dict[tuple[str, float, str, int, bool, str], list[Sample]] = {}
    for s in samples:
        groups.setdefault((s.measure, s.memory, s.table, s.workers, s.shuffle, s.loader), []).append(s)
    tables = list(dict.fromkeys(key[2] for key in groups))
    groups = dict(sorted(groups.items(), key=lambda item: (tables.index(item[0][2]), -item[0][1], *item[0][3:5])))
    best: dict[tuple[str, float], float] = {}  # seconds a GB of the best of the others that shuffle every row
    for (measure, memory, table, _, shuffle, loader), group in groups.items():
        if measure == EPOCH and shuffle and loader != OURS and ABOUT[loader].exact:
            wall = Spread.of(group, lambda s: s.wall / s.gigabytes).median
            best[table, memory] = min(wall, best.get((table, memory), wall))
    made = [epoch_row(group, best) if key[0] == EPOCH else resume_row(group) for key, group in groups.items()]
    return sorted(made, key=lambda row: row.section == RESUME_SECTION)


def epoch_row(group: list[Sample], best: dict[tuple[str, float], float]) -> Row:
    one = group[0]
    client = Spread.of(group, lambda s: s.client / s.gigabytes)
    server = Spread.of(group, lambda s: s.server / s.gigabytes)
    total = Spread.of(group, lambda s: (s.client + s.server) / s.gigabytes)
    wall = Spread.of(group, lambda s: s.wall / s.gigabytes)
    share = Spread.of(group, lambda s: s.share).median
    bars = epoch_bars(one, client.median, total.median, wall.median) if one.loader == OURS else []
    if one.loader == OURS and one.shuffle and (times := TIMES_BAR.get(at := (one.table, one.memory))) and at in best:
        bars.append(Bar(f"wall beside the best exact one / {times:g}", wall.median, best[at] / times))
    served = f"{server.median:8.2f}" if one.loader == OURS else f"{'-':>8}"
    text = f"{one.table:<9}{order(one.shuffle):<9}{one.workers:>7} {one.loader:<18}|{client.median:8.2f}{served}"
    text += f"{total.median:8.2f}{between(total):>16} |{wall.median:7.2f}{1 / wall.median:6.2f}"
    text += f"{Spread.of(group, lambda s: s.rows / s.wall).median:11,.0f} |{share:7.1%} |"
    if one.shuffle:
        text += " exact  " if ABOUT[one.loader].exact else " inexact"
    section = EPOCH_SECTION
    if one.memory:
        section += f" with memory for {one.memory:g} of the table; the disk reads {one.disk / 1e9:.2f} GB/s"
    return Row(section, f"{one.table}{one.shuffle}{one.workers}", text, bars)


def epoch_bars(of: Sample, client: float, total: float, wall: float) -> list[Bar]:
    if of.memory:
        if not of.shuffle or (of.table, of.memory) not in SPILL_BARS:
            return []
        cpu, share = SPILL_BARS[of.table, of.memory]
        return [Bar("total", total, cpu), Bar("wall", wall, 1e9 / of.disk / share)]
    key = (of.table, of.shuffle)
    if of.workers == 0 and (limit := CPU_BARS.get(key)):
        return [Bar("client", client, limit), Bar("total", total, limit)]
    if of.workers == 2 and (limit := WORKER_BARS.get(key)):
        return [Bar("client", client, limit)]
    return []


def resume_row(group: list[Sample]) -> Row:
    one = group[0]
    wall = Spread.of(group, lambda s: s.wall)
    client = Spread.of(group, lambda s: s.client)
    server = Spread.of(group, lambda s: s.server)
    total = Spread.of(group, lambda s: s.client + s.server)
    bars = [Bar("wall", wall.median, RESUME_BAR), Bar("client", client.median, RESUME_BAR)]
    bars.append(Bar("total", total.median, RESUME_BAR))
    served = f"{server.median:8.3f}" if one.loader == OURS else f"{'-':>8}"
    text = f"{one.table:<9} {one.loader:<18}|{wall.median:8.3f}{between(wall):>14}{client.median:9.3f}{served}"
    text += f"{between(total):>13} |{one.share:9.1%} | {'right' if all(s.right for s in group) else 'WRONG':<6}|"
    return Row(RESUME_SECTION, one.table, text, bars if one.loader == OURS else [])


def between(spread: Spread) -> str:
    digits = 3 if spread.high < 1 else 2 if spread.high < 100 else 0
    return f"{spread.low:.{digits}f}-{spread.high:.{digits}f}"


def text(lines: list[Row]) -> str:
    """Formats the table, with a heading per section and a line between groups."""
    out: list[str] = []
    section = group = ""
    for row in lines:
        if row.section != section:
            heading = HEADERS[RESUME_SECTION if row.section == RESUME_SECTION else EPOCH_SECTION]
            out += ["", f"-- {row.section} ".ljust(136, "-"), heading]
        elif row.group != group:
            out.append("")
        section, group = row.section, row.group
        out.append(row.line())
    return "\n".join(out).lstrip("\n")
