# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Stats: what a loader did and where it waited."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, NamedTuple

from kubeflow_datacache.monitoring.metrics import Family, text
from kubeflow_datacache.monitoring.stage_timer import STAGES, Stage

MEANING: Final[Mapping[Stage, str]] = {
    "head": "asking the head, which loads or restarts",
    "server": "data nodes making rows ready",
    "wire": "rows on their way",
    "decode": "merging rows into batches",
    "transform": "the transform",
    "consumer": "your own code between batches",
}
_PREFIX: Final = "datacache_loader_"
_COUNTED: Final = ("steps", "rows", "bytes", "reconnects", "shared")


class Depth(NamedTuple):
    """The contents of a queue: rows, and their Arrow bytes."""

    rows: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Stats:
    """A loader's statistics since its creation. Times are wall-clock seconds during iterations.

    seconds: {stage: seconds}; the stages add up to `wall`. In all stages but "consumer", the training loop waited.
    raw_queue_depth: rows that were received and not merged yet. prefetch_queue_depth: rows that were merged or
    transformed and not returned yet. steps, rows, bytes: returned so far. reconnects: how often streams were reopened.
    shared: steps that came from the reader of the host (option host); waiting for it counts for "wire".
    """

    seconds: Mapping[Stage, float]
    epoch: int
    next_step: int
    steps: int
    rows: int
    bytes: int
    raw_queue_depth: Depth
    prefetch_queue_depth: Depth
    reconnects: int
    shared: int = 0

    @property
    def wall(self) -> float:
        """Seconds during iterations."""
        return sum(self.seconds.values())

    @property
    def waited(self) -> float:
        """Seconds during which the consumer waited."""
        return self.wall - self.seconds["consumer"]

    @property
    def bottleneck(self) -> Stage:
        """The stage that took longest. "consumer" means that the loader keeps up with the training loop."""
        return max(STAGES, key=lambda stage: self.seconds[stage])

    def since(self, earlier: Stats) -> Stats:
        """The difference to earlier statistics of the same loader, for example those of one epoch. Positions and queue
        depths stay the current ones."""
        seconds = {stage: self.seconds[stage] - earlier.seconds[stage] for stage in STAGES}
        counted = {name: getattr(self, name) - getattr(earlier, name) for name in _COUNTED}
        return replace(self, seconds=seconds, **counted)

    def as_dict(self) -> dict[str, Any]:
        """All statistics as JSON-serializable values."""
        return {
            **asdict(self),
            "raw_queue_depth": self.raw_queue_depth._asdict(),
            "prefetch_queue_depth": self.prefetch_queue_depth._asdict(),
            "wall": self.wall,
            "waited": self.waited,
            "bottleneck": self.bottleneck,
        }

    def prometheus(self, **labels: str) -> str:
        """The statistics in Prometheus' text format, with these labels. For a live endpoint use export.Collector."""
        return text(self.families(), labels)

    def families(self) -> Iterator[Family]:
        """The statistics as metric families."""
        stages = [({"stage": stage}, spent) for stage, spent in self.seconds.items()]
        yield Family(f"{_PREFIX}seconds_total", "Wall time by what the training loop waited for.", stages)
        raw, ready = self.raw_queue_depth, self.prefetch_queue_depth
        for name, value, meaning in (
            ("steps_total", self.steps, "Batches given out."),
            ("rows_total", self.rows, "Rows given out."),
            ("bytes_total", self.bytes, "Arrow bytes given out."),
            ("reconnects_total", self.reconnects, "Streams opened again after a break."),
            ("shared_steps_total", self.shared, "Steps that came from the reader of the host."),
            ("epoch", self.epoch, "The epoch."),
            ("next_step", self.next_step, "The step that comes next."),
            ("raw_queue_rows", raw.rows, "Rows received and not merged yet."),
            ("raw_queue_bytes", raw.bytes, "Arrow bytes received and not merged yet."),
            ("prefetch_queue_rows", ready.rows, "Rows merged and not given out yet."),
            ("prefetch_queue_bytes", ready.bytes, "Arrow bytes merged and not given out yet."),
        ):
            yield Family(_PREFIX + name, meaning, [({}, value)])

    def _repr_html_(self) -> str:
        """HTML for notebooks: the lines of str()."""
        return f"<pre>{html.escape(str(self))}</pre>"

    def __str__(self) -> str:
        wall = self.wall or 1.0
        lines = [f"{'stage':<9} {'seconds':>10} {'share':>7}  what the loop waited for"]
        for stage in STAGES:
            spent = self.seconds[stage]
            mark = "  <- bottleneck" if stage == self.bottleneck and self.wall else ""
            lines.append(f"{stage:<9} {spent:>10.3f} {spent / wall:>7.1%}  {MEANING[stage]}{mark}")
        raw, ready = self.raw_queue_depth, self.prefetch_queue_depth
        lines += [
            f"{'wall':<9} {self.wall:>10.3f} {1:>7.1%}",
            f"returned: {self.steps:,} batches, {self.rows:,} rows, {_mb(self.bytes)} ({_mb(self.bytes / wall)}/s)",
            f"position: epoch {self.epoch:,}, next step {self.next_step:,}; reconnects: {self.reconnects:,}",
            f"queues:   raw {raw.rows:,} rows, {_mb(raw.bytes)}; prefetch {ready.rows:,} rows, {_mb(ready.bytes)}",
        ]
        if self.shared:
            lines.append(f"shared:   {self.shared:,} batches came from the reader of this host")
        return "\n".join(lines)


def _mb(count: float) -> str:
    return f"{count / 1e6:,.1f} MB"
