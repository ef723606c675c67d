# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Metrics in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Family(NamedTuple):
    """One metric: its full name, and a value for each set of labels."""

    name: str
    help: str
    samples: list[tuple[dict[str, str], float]]

    @property
    def kind(self) -> str:
        """Prometheus' type of the metric, which its name shows."""
        return "counter" if self.name.endswith("_total") else "gauge"


def text(families: Iterable[Family], labels: Mapping[str, str]) -> str:
    """The metrics in Prometheus' text format (exposition format 0.0.4), every sample with the labels too."""
    lines: list[str] = []
    for family in families:
        lines += [f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {family.kind}"]
        for own, value in family.samples:
            pairs = ",".join(f'{key}="{_escape(label)}"' for key, label in {**labels, **own}.items())
            lines.append(f"{family.name}{{{pairs}}} {value}" if pairs else f"{family.name} {value}")
    return "\n".join(lines) + "\n"


def _escape(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
