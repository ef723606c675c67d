# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The Go benchmark of package decode: list<int32> from plain pages, compared with a copy of the same bytes."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from benchlib import machine
from benchlib.process import run
from benchlib.sample import Sample
from benchlib.subjects import OURS

COPY = "copy of the bytes"
# Subject names in BenchmarkColumn's output.
SUBJECTS = {"copy": COPY, "plain": OURS}
SECONDS = 0.5
_LINE = re.compile(r"^BenchmarkColumn/([^/]+)/(\w+)\S*\s.*\s([\d.]+) MB/s", re.MULTILINE)


def build(tools: Path) -> None:
    """Builds the benchmark."""
    command = ["go", "test", "-c", "-o", str(tools / "decode.test"), "./cacheserver/source/parquet/decode"]
    subprocess.run(command, cwd=machine.REPOSITORY, check=True)


def figures(output: str) -> list[tuple[str, str, float]]:
    """Parses the benchmark's output: kind of list, subject, seconds per GB."""
    return [(lists, SUBJECTS[subject], 1e3 / float(rate)) for lists, subject, rate in _LINE.findall(output)]


def decode(tools: Path, rounds: int, step: Callable[[str], None]) -> Iterator[Sample]:
    """Yields a sample per round, subject and kind of list; the kind is stored as the table's name."""
    subjects = "|".join(SUBJECTS)
    command = [str(tools / "decode.test"), "-test.run=^$", f"-test.bench=^BenchmarkColumn$/.*/^({subjects})$"]
    for number in range(1, rounds + 1):
        step(f"decode: lists of int32, round {number} of {rounds}")
        done = run([*command, f"-test.benchtime={SECONDS}s"])
        found = figures(done.output)
        if not found:
            raise RuntimeError(f"{command[0]} printed no figures: {done.output}")
        for lists, subject, seconds in found:
            yield Sample(
                measure="decode",
                table=lists,
                subject=subject,
                round=number,
                gigabytes=1.0,
                wall=seconds,
                server_cpu=seconds,
                load_average=os.getloadavg()[0],
            )
