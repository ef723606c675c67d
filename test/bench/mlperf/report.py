# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The computation of the printed table."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from mlperf.workloads import Workload

EMPTY: Final = "empty"
OURS: Final = "datacache"
BARS: Final = {"flux": 3.0}  # times the accelerators of the best peer
_COARSE: Final = 1.4  # between one step that is tried and the next
_FINE: Final = 1.1  # between the longest that misses the bar and the shortest that meets it
_MOST_TRIED: Final = 12
HEAD: Final = (
    f"{'':6} {'':22} {'accelerators':>12} {'':>6}  {'CPU-s/GB':>8} {'CPU-s/GB':>9}\n"
    f"{'':6} {'loader':22} {'a core':>12} {'AU':>6}  {'1 epoch':>8} {'5 epochs':>9}"
)


@dataclass(frozen=True)
class Row:
    """What a loader reached: accelerators a core, their utilization, CPU seconds per GB of an epoch and of a load.

    epoch: servers are counted, DLIO's own loop is not.
    """

    loader: str
    accelerators: float
    used: float
    epoch: float
    load: float = 0.0

    def cpu(self, epochs: int) -> float:
        """CPU seconds per GB that is read in some epochs after one load."""
        return self.epoch + self.load / epochs


def accelerators(workload: Workload, step: float, ranks: int, cores: int) -> float:
    """The accelerators a core that ranks with a step of some seconds stand for: in a shorter one they ask for more."""
    return workload.seconds / step * ranks / workload.longer / cores


def shortest(used: Callable[[float], float], step: float, bar: float) -> tuple[float, float]:
    """The shortest step, in seconds, whose utilization meets the bar, and the utilization; infinite if none was found.

    From the given step on, longer or shorter ones are tried until one meets the bar and one doesn't, then two between.
    """
    short, long, best = 0.0, math.inf, 0.0
    for _ in range(_MOST_TRIED):
        now = used(step)
        if now >= bar:
            long, best = step, now
        else:
            short = step
        if short and long < math.inf:
            if long / short < _FINE:
                break
            step = math.sqrt(short * long)
        else:
            step = long / _COARSE if long < math.inf else short * _COARSE
    return long, best


def line(workload: Workload, row: Row) -> str:
    """A line of the table. The empty loader reads nothing."""
    cpu = [""] * 2 if row.loader == EMPTY else [f"{row.cpu(n):.2f}" for n in (1, 5)]
    return f"{workload.name:6} {row.loader:22} {row.accelerators:12.3g} {row.used:6.1%}  {cpu[0]:>8} {cpu[1]:>9}"


def verdict(workload: Workload, rows: Sequence[Row]) -> str:
    """How many times the accelerators of the best peer ours has, beside the bar of a workload that has one."""
    ours = next(row.accelerators for row in rows if row.loader == OURS)
    best = max((row for row in rows if row.loader not in (EMPTY, OURS)), key=lambda row: row.accelerators)
    if not best.accelerators:
        return f"{workload.name}: no peer met the utilization"
    ratio, bar = ours / best.accelerators, BARS.get(workload.name)
    text = f"{workload.name}: {ratio:.1f} times the accelerators of {best.loader}"
    return text if bar is None else f"{text}; bar {bar:g} times: {'met' if ratio >= bar else 'NOT MET'}"
