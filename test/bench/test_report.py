# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of the printed table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchlib.measure import PQARROW, PQARROW_KEPT, SEQUENTIAL, Sample
from benchlib.report import memory, rows, text
from benchlib.subjects import GRPC_GO, OURS, PYARROW
from benchlib.tables import Table

TABLE = Table("tokens", "m.json", [], rows=10, arrow_bytes=1_000_000_000, parquet_bytes=1)


def sample(measure: str, subject: str, number: int, cpu: float, case: str = "") -> Sample:
    return Sample(
        measure=measure,
        table="tokens",
        case=case,
        subject=subject,
        round=number,
        gigabytes=2.0,
        wall=4.0,
        server_cpu=cpu,
    )


def test_ratio_is_of_medians_and_shows_the_rounds() -> None:
    ours = [sample("load", OURS, i, cpu) for i, cpu in enumerate([2.0, 4.0, 9.0])]
    theirs = [sample("load", PQARROW, i, cpu) for i, cpu in enumerate([4.0, 4.0, 5.0])]
    row = rows(ours + theirs, [TABLE], ["load"])[0]
    assert (row.ratio, row.low, row.high) == (1.0, 0.5, 1.8)
    assert row.passed is False
    assert row.ours.split() == ["2.00", "2.00", "-", "0.50"]


@pytest.mark.parametrize(
    ("subject", "cpu", "passed"), [(PQARROW, 2.0, True), (PQARROW, 2.1, False), (PQARROW_KEPT, 9.0, None)]
)
def test_load_is_held_to_the_bare_read(subject: str, cpu: float, passed: bool | None) -> None:
    (row, *_) = [
        row
        for row in rows([sample("load", OURS, 1, cpu), sample("load", subject, 1, 4.0)], [TABLE], ["load"])
        if row.against == subject
    ]
    assert row.passed is passed


@pytest.mark.parametrize(("seconds", "passed"), [(5.0, True), (5.1, False)])
def test_single_rows_are_held_to_the_sequential_rate(seconds: float, passed: bool) -> None:
    pair = [
        sample("shuffle", OURS, 1, 1.0, SEQUENTIAL),
        replace(sample("shuffle", OURS, 1, 9.0, "clump 1"), wall=seconds),
    ]
    by_cpu, by_wall = rows(pair, [TABLE], ["shuffle"])[:2]
    assert (by_cpu.ratio, by_cpu.passed) == (9.0, None)
    assert (by_wall.ratio, by_wall.passed) == (seconds / 4.0, passed)


@pytest.mark.parametrize(
    ("subject", "case", "cpu", "passed"),
    [
        (PYARROW, "1 client", 4.2, True),
        (PYARROW, "1 client", 4.3, False),
        (PYARROW, "8 clients", 9.0, None),
        (GRPC_GO, "2 clients", 2.4, True),
        (GRPC_GO, "2 clients", 2.5, False),
    ],
)
def test_stream_is_held_to_other_servers(subject: str, case: str, cpu: float, passed: bool | None) -> None:
    pair = [sample("stream", OURS, 1, cpu, case), sample("stream", subject, 1, 4.0, case)]
    (row,) = [row for row in rows(pair, [TABLE], ["stream"]) if row.against == subject]
    assert row.passed is passed
    assert ("FAIL" in text([row])) is (passed is False)


def test_references_alone_hold_no_bar() -> None:
    (row,) = rows([sample("load", PQARROW, 1, 4.0)], [TABLE], ["load"])
    assert row.passed is None
    assert row.ours == ""


def test_memory_counts_the_largest_round() -> None:
    used = [
        Sample(
            measure="load",
            table="tokens",
            subject=OURS,
            round=i,
            gigabytes=1.0,
            wall=1.0,
            server_cpu=1.0,
            peak_rss=peak,
            resident_rss=1_110_000_000,
        )
        for i, peak in enumerate([1_100_000_000, 1_300_000_000])
    ]
    peak, resident = memory(TABLE, used)
    assert (peak.ratio, peak.passed) == (1.3, False)
    assert (resident.bar, resident.passed) == (pytest.approx(1.114), True)


def test_small_tables_have_no_bar_on_the_peak() -> None:
    small = Table("tokens", "m.json", [], rows=10, arrow_bytes=50_000_000, parquet_bytes=1)
    peak, resident = memory(small, [sample("load", OURS, 1, 1.0)])
    assert peak.passed is None
    assert resident.passed is True
