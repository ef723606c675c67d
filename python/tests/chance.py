# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Random schedules that can be had again."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Chance:
    """Where random tests get their schedules from: the same seed and number give the same schedule."""

    seed: int
    thorough: int
    only: int | None
    notes: list[str]

    def schedules(self, count: int) -> Iterator[tuple[int, random.Random]]:
        """The numbers of so many schedules, times --thorough, and random numbers for each."""
        for number in range(count * self.thorough) if self.only is None else [self.only]:
            print(f"--seed {self.seed} --schedule {number}")  # pytest shows it if the test fails
            yield number, random.Random(f"{self.seed} {number}")

    def note(self, text: str) -> None:
        """Says at the end of the run what was done."""
        self.notes.append(f"{text} (--seed {self.seed})")
