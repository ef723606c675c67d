# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A prometheus_client collector of a loader's statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from kubeflow_datacache.monitoring.stats import Stats


class Collector:
    """Exports a loader's statistics: REGISTRY.register(Collector(loader.stats, job="bert")).

    prometheus_client calls stats at every scrape, from its own thread. Requires the package prometheus_client.
    """

    def __init__(self, stats: Callable[[], Stats], **labels: str) -> None:
        self._stats, self._labels = stats, labels

    def collect(self) -> Iterator[Any]:
        """Yields one prometheus_client Metric per metric family."""
        from prometheus_client.core import Metric  # pyright: ignore[reportMissingImports] - only where it is used

        for family in self._stats().families():
            metric = Metric(family.name.removesuffix("_total"), family.help, family.kind)
            for own, value in family.samples:
                metric.add_sample(family.name, {**self._labels, **own}, value)
            yield metric
