# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Reproducible random schedules."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from seeds import SEED


@dataclass(frozen=True)
class Chance:
    """Source of random schedules: the same SEED and number give the same schedule."""

    thorough: int
    only: int | None
    notes: list[str]

    def schedules(self, count: int) -> Iterator[tuple[int, random.Random]]:
        """Yields `count` times --thorough schedule numbers, each with its random generator."""
        for number in range(count * self.thorough) if self.only is None else [self.only]:
            print(f"SEED={SEED} --schedule {number}")  # pytest shows it if the test fails
            yield number, random.Random(f"{SEED} {number}")

    def note(self, text: str) -> None:
        """Adds a line to the summary at the end of the test run."""
        self.notes.append(f"{text} (SEED={SEED})")
