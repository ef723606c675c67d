# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Latency of small shards over open connections."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from statistics import median

from benchlib.clients import Clients
from benchlib.sample import Sample
from benchlib.subjects import OURS, PYARROW, TRAINER, Subject
from benchlib.tables import Table

# Rows of 2 KB and of 88 bytes; with larger rows, the first batch would measure bandwidth.
TABLES = ("tokens", "tabular")
SUBJECTS = (OURS, PYARROW, TRAINER)
ROWS = 100
CALLS = 400
# Names of the measured calls by their keys in client.py's answers.
CASES = {"infos": "GetFlightInfo", "firsts": "first batch"}


def latency(
    table: Table, subjects: list[Subject], pool: Clients, rounds: int, step: Callable[[str], None]
) -> Iterator[Sample]:
    """Medians over CALLS shards of ROWS rows, requested one after the other by one client."""
    step(f"{table.name}: latency of shards of {ROWS} rows, {rounds} rounds")
    for number in range(1, rounds + 1):
        for subject in subjects:
            yield from _calls(table, subject, pool, number)


def _calls(table: Table, subject: Subject, pool: Clients, number: int) -> Iterator[Sample]:
    request = {
        "reader": "calls",
        "uri": subject.server.uri,
        # Rounded up, as Trainer's cache lacks the last of slightly longer shards.
        "total": -(-table.rows // ROWS),
        "calls": CALLS,
        "seed": number,
    }
    before = subject.server.cpu()
    got = pool.read([request])
    used = subject.server.cpu() - before
    for key, case in CASES.items():
        yield Sample(
            measure="latency",
            table=table.name,
            subject=subject.name,
            case=case,
            round=number,
            gigabytes=got.bytes / 1e9,
            wall=median(got.answers[0][key]),
            server_cpu=used,
            client_cpu=got.cpu,
            load_average=os.getloadavg()[0],
        )
