# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The computation of the loader bench's table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loaderbench.job import EPOCH, RESUME
from loaderbench.measure import OURS, Sample
from loaderbench.report import Bar, Spread, rows, text


def epoch(loader: str, client: float, *, server: float = 0.0, shuffle: bool = False, workers: int = 0) -> Sample:
    return Sample(
        measure=EPOCH,
        table="tokens",
        loader=loader,
        shuffle=shuffle,
        workers=workers,
        wall=4.0,
        client=client,
        server=server,
        rows=1000,
        gigabytes=2.0,
    )


def resume(wall: float, client: float, *, server: float = 0.0, right: bool = True) -> Sample:
    return Sample(
        measure=RESUME,
        table="tokens",
        loader=OURS,
        shuffle=True,
        workers=0,
        wall=wall,
        client=client,
        server=server,
        share=0.5,
        right=right,
    )


def test_spread_is_the_median_and_the_extremes() -> None:
    samples = [epoch("a", cpu) for cpu in (9.0, 1.0, 4.0)]
    assert Spread.of(samples, lambda s: s.client / s.gigabytes) == Spread(2.0, 0.5, 4.5)


def test_bars_hold_client_and_total_per_gigabyte() -> None:
    (row,) = rows([epoch(OURS, 1.8, server=1.0)])
    assert row.bars == [Bar("client", 0.9, 1.0), Bar("total", 1.4, 1.0)]
    assert [bar.met for bar in row.bars] == [True, False]
    assert "client met, total MISSED" in row.line()


def test_two_workers_hold_the_client() -> None:
    (row,) = rows([epoch(OURS, 2.8, server=1.0, workers=2)])
    assert row.bars == [Bar("client", 1.4, 1.5)]


@pytest.mark.parametrize(
    "sample",
    [epoch("litdata", 1.0), epoch(OURS, 1.0, workers=2, shuffle=True), epoch(OURS, 1.0, workers=4)],
    ids=["a peer", "shuffled with workers", "more workers"],
)
def test_others_have_no_bars(sample: Sample) -> None:
    (row,) = rows([sample])
    assert row.bars == []


def test_shuffled_epochs_have_bars_of_their_own() -> None:
    (row,) = rows([epoch(OURS, 2.0, shuffle=True)])
    assert {bar.limit for bar in row.bars} == {1.3}


def test_resume_holds_wall_client_and_total() -> None:
    (row,) = rows([resume(0.2, 0.05, server=0.06), resume(0.09, 0.05, server=0.06), resume(0.08, 0.05, server=0.06)])
    assert [(bar.what, bar.met) for bar in row.bars] == [("wall", True), ("client", True), ("total", False)]
    assert "50.0%" in row.text


def test_limited_memory_holds_the_speed_of_the_disk() -> None:
    sample = replace(epoch(OURS, 1.0, server=1.0, shuffle=True), memory=0.5, disk=1e9)
    (row,) = rows([sample])
    # The bar of wall is 1.67 s/GB; the sample took 2.
    assert [(bar.what, bar.met) for bar in row.bars] == [("total", True), ("wall", False)]
    assert rows([replace(sample, wall=3.0)])[0].bars[1].met
    assert "memory for 0.5 of the table; the disk reads 1.00 GB/s" in text([row])


def test_one_wrong_batch_makes_the_row_wrong() -> None:
    (row,) = rows([resume(0.1, 0.1), resume(0.1, 0.1, right=False)])
    assert "WRONG" in row.text


def test_sections_follow_each_other_whatever_the_order_of_tables() -> None:
    lines = rows([resume(0.1, 0.1), epoch(OURS, 1.0), epoch("litdata", 1.0)])
    assert [row.section.split()[0] for row in lines] == ["Epochs", "Epochs", "Resume"]
    assert text(lines).index("Epochs") < text(lines).index("Resume in mid-epoch")


def test_with_little_memory_the_best_of_the_exact_ones_is_the_measure() -> None:
    """Samples come loader by loader; the table has a section for each limit of memory."""
    walls = {OURS: 2.0, "hf_map": 12.0, "lance_permutation": 9.0, "mosaicml": 1.0}
    samples = [
        replace(epoch(loader, 1.0, shuffle=shuffle), wall=wall, memory=memory, disk=1e9)
        for loader, wall in walls.items()
        for memory in (0.5, 0.25)
        for shuffle in (False, True)
    ]
    lines = rows(samples)
    bars = {bar.what: (bar.limit, bar.met) for row in lines for bar in row.bars}
    assert bars.pop("wall beside the best exact one / 5") == (9.0 / 2.0 / 5, False)
    assert set(bars) == {"total", "wall"}
    assert text(lines).count("-- Epochs with memory for ") == 2
    assert [("exact" in row.text, "inexact" in row.text) for row in lines[4:8]] == [(True, False)] * 3 + [(True, True)]
