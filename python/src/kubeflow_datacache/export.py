# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A loader's numbers for Prometheus, as a collector of prometheus_client."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from kubeflow_datacache.watch.stats import Stats


class Collector:
    """Shows a loader's numbers at prometheus_client's endpoint: REGISTRY.register(Collector(loader.stats, job="bert")).

    stats is called at every scrape, from the endpoint's thread. Needs the package prometheus_client.
    """

    def __init__(self, stats: Callable[[], Stats], **labels: str) -> None:
        self._stats, self._labels = stats, labels

    def collect(self) -> Iterator[Any]:
        """What prometheus_client asks for: one metric a family."""
        from prometheus_client.core import Metric  # pyright: ignore[reportMissingImports] - only where it is used

        for family in self._stats().families():
            metric = Metric(family.name.removesuffix("_total"), family.help, family.kind)
            for own, value in family.samples:
                metric.add_sample(family.name, {**self._labels, **own}, value)
            yield metric
