# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The computation of the printed table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchlib.crowd import FEW, FEW_BARE, FEW_LOADERS, FEW_PLAIN, MANY, MANY_BARE, MANY_LOADERS, MANY_PLAIN
from benchlib.decode import COPY, figures
from benchlib.measure import PQARROW, PQARROW_KEPT, SEQUENTIAL
from benchlib.profile_parts import REST, part
from benchlib.report import memory, rows, text
from benchlib.sample import Sample
from benchlib.subjects import GRPC_GO, LOADER, LOADER_TLS, OURS, PYARROW, TCP, TLS, TRAINER
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


def test_ratio_is_the_median_of_the_rounds_and_shows_their_extremes() -> None:
    ours = [sample("load", OURS, i, cpu) for i, cpu in enumerate([2.0, 4.0, 9.0])]
    theirs = [sample("load", PQARROW, i, cpu) for i, cpu in enumerate([5.0, 4.0, 5.0])]
    row = rows(ours + theirs, [TABLE], ["load"])[0]
    assert (row.ratio, row.low, row.high) == (1.0, 0.4, 1.8)
    assert row.passed is False
    assert row.ours.split() == ["2.00", "2.00", "-", "0.50"]


@pytest.mark.parametrize(
    ("subject", "cpu", "passed"),
    [
        (PQARROW, 2.0, True),
        (PQARROW, 2.1, False),
        (PQARROW_KEPT, 9.0, None),
        (TRAINER, 4.0, True),
        (TRAINER, 4.1, False),
    ],
)
def test_load_is_held_to_the_bare_read_and_to_trainers_cache(subject: str, cpu: float, passed: bool | None) -> None:
    (row, *_) = [
        row
        for row in rows([sample("load", OURS, 1, cpu), sample("load", subject, 1, 4.0)], [TABLE], ["load"])
        if row.against == subject
    ]
    assert row.passed is passed


@pytest.mark.parametrize(
    ("case", "seconds", "passed"),
    [("clump 1", 5.0, True), ("clump 1", 5.1, False), ("clump 64", 4.4, True), ("clump 64", 4.5, False)],
)
def test_epochs_are_held_to_the_sequential_rate(case: str, seconds: float, passed: bool) -> None:
    pair = [sample("shuffle", OURS, 1, 1.0, SEQUENTIAL), replace(sample("shuffle", OURS, 1, 9.0, case), wall=seconds)]
    by_cpu, by_wall = (row for row in rows(pair, [TABLE], ["shuffle"]) if row.case == case and row.ratio)
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
        (TRAINER, "2 clients", 4.0, True),
        (TRAINER, "1 client", 4.1, False),
    ],
)
def test_stream_is_held_to_other_servers(subject: str, case: str, cpu: float, passed: bool | None) -> None:
    pair = [sample("stream", OURS, 1, cpu, case), sample("stream", subject, 1, 4.0, case)]
    (row,) = [row for row in rows(pair, [TABLE], ["stream"]) if row.against == subject]
    assert row.passed is passed
    assert ("FAIL" in text([row])) is (passed is False)


@pytest.mark.parametrize(("cpu", "passed"), [(4.0, True), (4.1, False)])
def test_the_loaders_tls_is_held_to_pyarrows_client(cpu: float, passed: bool) -> None:
    pair = [
        replace(sample("stream", name, 1, 1.0, "1 client"), client_cpu=used)
        for name, used in ((TLS, 4.0), (LOADER_TLS, cpu))
    ]
    (row,) = [row for row in rows(pair, [TABLE], ["stream"]) if row.against == "TLS: loader to pyarrow"]
    assert row.passed is passed


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
    peak, resident = memory(TABLE, used, [])
    assert (peak.ratio, peak.passed) == (1.3, False)
    assert (resident.bar, resident.passed) == (pytest.approx(1.114), True)


def test_memory_is_held_to_trainers_cache() -> None:
    ours = replace(sample("load", OURS, 1, 1.0), peak_rss=1_100_000_000, resident_rss=1_050_000_000)
    theirs = replace(ours, subject=TRAINER, peak_rss=1_000_000_000, resident_rss=1_400_000_000)
    _, _, peak, resident = memory(TABLE, [ours], [theirs])
    assert (peak.ratio, peak.passed) == (1.1, False)
    assert (resident.ratio, resident.passed) == (0.75, True)


def test_loads_are_held_to_all_cores_from_half_a_gigabyte_and_to_their_memory_at_any_size() -> None:
    def load(gigabytes: float, workers: int, wall: float, peak: int) -> Sample:
        case = f"{gigabytes:.1f} GB by {workers}"
        taken = replace(sample("cores", OURS, 1, 1.0), gigabytes=gigabytes, wall=wall, server_cpu=1.0, case=case)
        return replace(taken, peak_rss=peak)

    samples = [load(0.1, 1, 3.0, 10**8), load(0.5, 1, 1.2, 10**8), load(1.0, 1, 1.1, 1_101_000_000)]
    lines = rows(samples, [TABLE], ["cores"])
    found = {(row.case, row.against): row.passed for row in lines if row.section == "All cores"}
    cores, peak = "wall x cores / CPU", "peak / what it may be"
    assert found == {
        ("0.1 GB by 1", cores): None,
        ("0.1 GB by 1", peak): True,
        ("0.5 GB by 1", cores): False,
        ("0.5 GB by 1", peak): True,
        ("1.0 GB by 1", cores): True,
        ("1.0 GB by 1", peak): False,
    }


@pytest.mark.parametrize(
    ("cpu", "last", "cheap", "fair"),
    [(1.05, 2.3, True, True), (1.06, 2.3, False, True), (1.05, 2.5, True, False)],
)
def test_many_clients_are_held_to_another_server_and_to_each_other(
    cpu: float, last: float, cheap: bool, fair: bool
) -> None:
    few, many = (sample("crowd", OURS, 1, cpu, case) for case in (FEW, MANY))
    many = replace(many, wall=60.0, gigabytes=20.0, first=2.0, last=last)
    theirs = replace(many, subject=PYARROW, server_cpu=1.0)
    cases = ((few, FEW_LOADERS), (many, MANY_LOADERS), (few, FEW_PLAIN), (many, MANY_PLAIN))
    cheaper = [replace(one, case=case) for one, case in cases]
    bare = [replace(few, subject=TCP, case=FEW_BARE), replace(many, subject=TCP, case=MANY_BARE, wall=60.0)]
    sums, other, spread, loaders, plain, floor = rows([few, many, theirs, *cheaper, *bare], [TABLE], ["crowd"])
    assert (sums.passed, other.passed, spread.passed) == (None, cheap, fair)
    assert (loaders.passed, plain.passed) == (None, None)
    assert (floor.ratio, floor.passed) == (pytest.approx(1.5), None)
    assert sums.ratio == pytest.approx(1.5)
    assert (spread.ours, spread.reference) == (f"{last:.2f} s", "2.00 s")


@pytest.mark.parametrize(
    ("case", "seconds", "cpu", "fast", "cheap"),
    [
        ("0 ms, 1", 4.2, 1.6, True, True),
        ("0.5 ms, 1", 4.3, 1.7, False, False),
        ("20 ms, 1", 4.0, 9.0, True, None),
        ("20 ms, 64", 9.0, 9.0, None, None),
    ],
)
def test_one_stream_is_held_to_others_at_every_distance(
    case: str, seconds: float, cpu: float, fast: bool | None, cheap: bool | None
) -> None:
    ours = replace(sample("network", OURS, 1, cpu, case), wall=seconds)
    theirs = [sample("network", name, 1, 1.0, case) for name in (PYARROW, GRPC_GO)]
    found = rows([ours, replace(ours, subject=LOADER), *theirs], [TABLE], ["network"])
    rates = [row.passed for row in found if not row.case.endswith("CPU")]
    assert rates == [fast] * 4
    assert [row.passed for row in found if row.case.endswith("CPU")] == ([cheap] if case.endswith(", 1") else [])


@pytest.mark.parametrize(("seconds", "passed"), [(0.5e-3, True), (0.51e-3, False)])
def test_latency_is_held_to_milliseconds(seconds: float, passed: bool) -> None:
    pair = [
        replace(sample("latency", OURS, 1, 1.0, "GetFlightInfo"), wall=seconds),
        replace(sample("latency", PYARROW, 1, 1.0, "GetFlightInfo"), wall=1e-3),
        replace(sample("latency", TRAINER, 1, 1.0, "GetFlightInfo"), wall=2e-3),
    ]
    limit, other, trainers = rows(pair, [TABLE], ["latency"])
    assert (limit.passed, limit.reference) == (passed, "0.50 ms")
    assert (other.passed, other.reference, other.ratio) == (None, "1.00 ms", pytest.approx(seconds / 1e-3))
    assert (trainers.reference, trainers.ratio) == ("2.00 ms", pytest.approx(seconds / 2e-3))


def test_figures_of_the_go_benchmark() -> None:
    output = """goos: linux
BenchmarkColumn/512/copy-2         \t     758\t    824513 ns/op\t20000.00 MB/s
BenchmarkColumn/1-40/plain         \t     237\t   3267129 ns/op\t 500.5 MB/s\t 12 B/op
PASS
"""
    assert figures(output) == [("512", COPY, 0.05), ("1-40", OURS, pytest.approx(1 / 0.5005))]


@pytest.mark.parametrize(
    ("functions", "want"),
    [
        (
            ["runtime.memmove", "x/cacheserver/source/parquet/decode.(*fixed[...]).read", "x/parquet/decode.Open"],
            "pages to batches",
        ),
        (
            ["a/linux.Syscall6", "unix.Madvise", "x/cacheserver/rows.populate (inline)"],
            "first touch of the chunks' memory",
        ),
        (["x/parquet/decode.gather[go.shape.uint32]", "x/parquet/decode.Open"], "dictionary indices to values"),
        (["x/parquet/decode.(*levels).peek", "x/parquet/decode.Open"], "levels"),
        (["internal/poll.(*FD).Writev", "x/cacheserver/transport/h2.(*conn).write"], "system call writev"),
        (["runtime.findRunnable"], REST),
    ],
)
def test_parts_of_the_work(functions: list[str], want: str) -> None:
    assert part(functions) == want
