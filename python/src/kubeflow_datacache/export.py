# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A loader's numbers for Prometheus: as text, and as a collector of prometheus_client."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from kubeflow_datacache.watch.stats import Stats

_PREFIX: Final = "datacache_loader_"


class Family(NamedTuple):
    """One metric: its full name, and a value for each set of labels."""

    name: str
    help: str
    samples: list[tuple[dict[str, str], float]]

    @property
    def kind(self) -> str:
        """Prometheus' type of the metric, which its name shows."""
        return "counter" if self.name.endswith("_total") else "gauge"


def families(stats: Stats) -> Iterator[Family]:
    """All metrics of a loader."""
    stages = [({"stage": stage}, spent) for stage, spent in stats.seconds.items()]
    yield Family(f"{_PREFIX}seconds_total", "Wall time by what the training loop waited for.", stages)
    raw, ready = stats.raw_queue_depth, stats.prefetch_queue_depth
    for name, value, meaning in (
        ("steps_total", stats.steps, "Batches given out."),
        ("rows_total", stats.rows, "Rows given out."),
        ("bytes_total", stats.bytes, "Arrow bytes given out."),
        ("reconnects_total", stats.reconnects, "Streams opened again after a break."),
        ("epoch", stats.epoch, "The epoch."),
        ("next_step", stats.next_step, "The step that comes next."),
        ("raw_queue_rows", raw.rows, "Rows received and not merged yet."),
        ("raw_queue_bytes", raw.bytes, "Arrow bytes received and not merged yet."),
        ("prefetch_queue_rows", ready.rows, "Rows merged and not given out yet."),
        ("prefetch_queue_bytes", ready.bytes, "Arrow bytes merged and not given out yet."),
    ):
        yield Family(_PREFIX + name, meaning, [({}, value)])


def text(stats: Stats, labels: Mapping[str, str]) -> str:
    """The metrics in Prometheus' text format (exposition format 0.0.4), every sample with the labels too."""
    lines: list[str] = []
    for family in families(stats):
        lines += [f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {family.kind}"]
        for own, value in family.samples:
            pairs = ",".join(f'{key}="{_escape(label)}"' for key, label in {**labels, **own}.items())
            lines.append(f"{family.name}{{{pairs}}} {value}" if pairs else f"{family.name} {value}")
    return "\n".join(lines) + "\n"


class Collector:
    """Shows a loader's numbers at prometheus_client's endpoint: REGISTRY.register(Collector(loader.stats, job="bert")).

    stats is called at every scrape, from the endpoint's thread. Needs the package prometheus_client.
    """

    def __init__(self, stats: Callable[[], Stats], **labels: str) -> None:
        self._stats, self._labels = stats, labels

    def collect(self) -> Iterator[Any]:
        """What prometheus_client asks for: one metric a family."""
        from prometheus_client.core import Metric  # pyright: ignore[reportMissingImports] - only where it is used

        for family in families(self._stats()):
            metric = Metric(family.name.removesuffix("_total"), family.help, family.kind)
            for own, value in family.samples:
                metric.add_sample(family.name, {**self._labels, **own}, value)
            yield metric


def _escape(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
