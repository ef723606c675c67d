# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a loader did and where it waited."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kubeflow_datacache.clock import STAGES, Stage

_MEANING: Mapping[Stage, str] = {
    "head": "asking the head; it loads or restarts",
    "server": "data nodes making rows ready",
    "wire": "rows on their way",
    "decode": "merging rows into batches",
    "transform": "the transform",
    "consumer": "your own code between batches",
}


@dataclass(frozen=True, kw_only=True)
class Stats:
    """A loader's numbers since it was made. Seconds are wall time while an iteration was open.

    seconds: {stage: seconds}; the stages add up to `wall`. All but "consumer" is time that the training loop waited.
    raw_*: received, not merged yet; ready_*: merged, not given out yet. reconnects: streams opened again.
    """

    seconds: Mapping[Stage, float]
    epoch: int
    next_step: int
    steps: int
    rows: int
    bytes: int
    raw_rows: int
    raw_bytes: int
    ready_rows: int
    ready_bytes: int
    reconnects: int

    @property
    def wall(self) -> float:
        """Seconds that iterations were open."""
        return sum(self.seconds.values())

    @property
    def waited(self) -> float:
        """Seconds that the consumer waited."""
        return self.wall - self.seconds["consumer"]

    @property
    def slowest(self) -> Stage:
        """The stage that the consumer waited for longest."""
        return max((s for s in STAGES if s != "consumer"), key=lambda s: self.seconds[s])

    def as_dict(self) -> dict[str, Any]:
        """All numbers, ready for JSON."""
        return {**asdict(self), "seconds": dict(self.seconds), "wall": self.wall, "waited": self.waited}

    def prometheus(self, **labels: str) -> str:
        """The numbers in Prometheus' text format, each with the labels."""
        own = ",".join(f'{key}="{_escape(value)}"' for key, value in labels.items())
        lines = [
            "# HELP datacache_loader_seconds_total Wall time by stage: what the training loop waited for.",
            "# TYPE datacache_loader_seconds_total counter",
        ]
        for stage in STAGES:
            both = ",".join(filter(None, [f'stage="{stage}"', own]))
            lines.append(f"datacache_loader_seconds_total{{{both}}} {self.seconds[stage]:.6f}")
        braces = f"{{{own}}}" if own else ""
        for name, kind, text in _NUMBERS:
            full = f"datacache_loader_{name}{'_total' if kind == 'counter' else ''}"
            lines += [f"# HELP {full} {text}", f"# TYPE {full} {kind}", f"{full}{braces} {getattr(self, name)}"]
        return "\n".join(lines) + "\n"

    def __str__(self) -> str:
        wall = self.wall or 1.0
        lines = [f"{'stage':<10} {'seconds':>9} {'share':>6}  waited for"]
        for stage in STAGES:
            spent = self.seconds[stage]
            lines.append(f"{stage:<10} {spent:>9.3f} {spent / wall:>6.1%}  {_MEANING[stage]}")
        lines += [
            f"{'wall':<10} {self.wall:>9.3f}",
            f"epoch {self.epoch}, next step {self.next_step}; {self.steps:,} steps, {self.rows:,} rows,"
            f" {self.bytes / 1e6:,.1f} MB given ({self.bytes / wall / 1e6:,.1f} MB/s); {self.reconnects} reconnects",
            f"read ahead: raw {self.raw_rows:,} rows, {self.raw_bytes / 1e6:,.1f} MB; ready {self.ready_rows:,} rows,"
            f" {self.ready_bytes / 1e6:,.1f} MB",
        ]
        return "\n".join(lines)


_NUMBERS = (
    ("steps", "counter", "Batches given out."),
    ("rows", "counter", "Rows given out."),
    ("bytes", "counter", "Arrow bytes given out."),
    ("reconnects", "counter", "Streams opened again after a break."),
    ("epoch", "gauge", "The epoch."),
    ("next_step", "gauge", "The step that comes next."),
    ("raw_rows", "gauge", "Rows received and not merged yet."),
    ("raw_bytes", "gauge", "Arrow bytes received and not merged yet."),
    ("ready_rows", "gauge", "Rows merged and not given out yet."),
    ("ready_bytes", "gauge", "Arrow bytes merged and not given out yet."),
)


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
