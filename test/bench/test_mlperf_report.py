# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The computation of the table of make bench NAME=mlperf."""

from __future__ import annotations

import math

import pytest
from mlperf.report import EMPTY, OURS, Row, accelerators, line, shortest, verdict
from mlperf.workloads import BY_SAMPLE, EPOCHS, WORKLOADS


def test_a_step_as_long_as_the_accelerators_is_one_accelerator() -> None:
    flux, dlrm = WORKLOADS["flux"], WORKLOADS["dlrm"]
    assert accelerators(flux, 1.35 / 4, ranks=2, cores=2) == pytest.approx(1.0)
    assert accelerators(flux, 1.35 / 40, ranks=2, cores=4) == pytest.approx(5.0)
    assert accelerators(dlrm, 0.375e-3, ranks=1, cores=1) == pytest.approx(1.0)
    assert accelerators(dlrm, 0.375e-3 * 200, ranks=2, cores=2) == pytest.approx(1 / 200)


@pytest.mark.parametrize(("name", "rate"), [("flux", 77e6), ("dlrm", 6.99e9)])
def test_an_accelerator_asks_for_the_bytes_of_the_workload(name: str, rate: float) -> None:
    w = WORKLOADS[name]
    assert w.row_bytes * w.rows / w.seconds * w.longer == pytest.approx(rate, rel=0.01)
    assert w.file_rows % w.rows == 0, "a rank's files are whole batches"


def test_a_load_is_spread_over_the_epochs() -> None:
    row = Row(OURS, 6.5, 0.91, epoch=0.2, load=1.0)
    assert (row.cpu(1), row.cpu(5)) == pytest.approx((1.2, 0.4))
    assert line(WORKLOADS["flux"], row).split() == ["flux", "datacache", "6.5", "91.0%", "1.20", "0.40"]
    assert line(WORKLOADS["flux"], Row(EMPTY, 100, 0.9, 0.0)).split() == ["flux", "empty", "100", "90.0%"]


@pytest.mark.parametrize("first", [0.2, 0.9, 1.0, 1.05, 4.0])
def test_the_shortest_step_that_meets_the_bar_is_found_from_either_side(first: float) -> None:
    """A loader that takes a second for a batch, whatever the accelerators do."""
    step, used = shortest(lambda at: min(1.0, at), first, 0.9)
    assert 0.9 <= step < 0.9 * 1.1
    assert used == min(1.0, step)
    assert shortest(lambda _: 0.5, first, 0.9) == (math.inf, 0.0)
    assert accelerators(WORKLOADS["flux"], math.inf, ranks=2, cores=2) == 0


def test_short_samples_are_read_one_by_one_from_few_files() -> None:
    assert WORKLOADS["flux"].read_by(BY_SAMPLE) == WORKLOADS["flux"].read_by(OURS) == (12, EPOCHS)
    assert WORKLOADS["dlrm"].read_by(BY_SAMPLE) == (2, 1)
    assert WORKLOADS["dlrm"].read_by(OURS) == (32, EPOCHS)
    assert WORKLOADS["flux"].gigabytes(12) == pytest.approx(12 * 48 * 2_164_832 / 1e9)


@pytest.mark.parametrize(
    ("name", "ours", "says"),
    [
        ("flux", 6.0, "flux: 3.0 times the accelerators of b; bar 3 times: met"),
        ("flux", 5.9, "flux: 3.0 times the accelerators of b; bar 3 times: NOT MET"),
        ("dlrm", 5.0, "dlrm: 2.5 times the accelerators of b"),
    ],
)
def test_ours_is_held_to_the_best_peer(name: str, ours: float, says: str) -> None:
    rows = [Row(loader, n, 0.9, 1.0) for loader, n in ((EMPTY, 99.0), ("a", 1.0), ("b", 2.0), (OURS, ours))]
    assert verdict(WORKLOADS[name], rows) == says


def test_no_ratio_to_peers_that_starve_accelerators() -> None:
    assert "no peer" in verdict(WORKLOADS["flux"], [Row("a", 0.0, 0.2, 1.0), Row(OURS, 1.0, 0.9, 1.0)])
