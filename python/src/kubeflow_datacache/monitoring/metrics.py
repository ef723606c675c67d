# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Family(NamedTuple):
    """A metric family: its full name, help text, and a value per set of labels."""

    name: str
    help: str
    samples: list[tuple[dict[str, str], float]]

    @property
    def kind(self) -> str:
        """The metric's Prometheus type, derived from its name."""
        return "counter" if self.name.endswith("_total") else "gauge"


def text(families: Iterable[Family], labels: Mapping[str, str]) -> str:
    """Formats metrics in Prometheus' text format 0.0.4, adding the labels to every sample."""
    lines: list[str] = []
    for family in families:
        lines += [f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {family.kind}"]
        for own, value in family.samples:
            pairs = ",".join(f'{key}="{_escape(label)}"' for key, label in {**labels, **own}.items())
            lines.append(f"{family.name}{{{pairs}}} {value}" if pairs else f"{family.name} {value}")
    return "\n".join(lines) + "\n"


def _escape(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
