# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""torchft's replicas commit each global batch of the order once, while one of them is killed and comes back."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from forked import run_script
from small import small_cache, steps_of

ROWS = 3_216
OPTIONS: dict[str, Any] = {"global_batch_size": 16, "seed": 7, "tail": "keep"}


def test_a_replica_is_killed_and_comes_back(server: Path, tmp_path: Path) -> None:
    with small_cache(server, tmp_path, ROWS) as endpoint:
        logs = run_script("examples/torchft_training.py", endpoint, OPTIONS, str(tmp_path / "replicas"))
    read: dict[tuple[int, int], dict[int, dict[str, Any]]] = {}  # by step and quorum, then by rank
    committed: dict[int, set[int]] = {}  # the quorums that committed a step
    weights: dict[int, list[list[float]]] = {}
    for one in (line for log in logs for line in log):
        if "ids" in one:
            read.setdefault((one["step"], one["quorum"]), {})[one["rank"]] = one
        else:
            committed.setdefault(one["step"], set()).add(one["quorum"])
            weights.setdefault(one["step"], []).append(one["weights"])
    epochs = len(committed) * OPTIONS["global_batch_size"] // ROWS + 1
    want = [step for epoch in range(epochs) for step in steps_of(OPTIONS, epoch, rows=ROWS)]
    assert sorted(committed) == list(range(len(committed)))
    sizes = set[int]()
    for step, quorums in committed.items():
        (quorum,) = quorums
        ranks = read[step, quorum]
        assert {one["size"] for one in ranks.values()} == {len(ranks)}, (step, ranks)
        assert [i for rank in range(len(ranks)) for i in ranks[rank]["ids"]] == want[step], step
        assert weights[step].count(weights[step][0]) == len(weights[step]), step
        sizes.add(len(ranks))
    assert {2, 3} <= sizes
    attempts = Counter(one["step"] for one in logs[0] if "ids" in one)
    assert max(attempts.values()) > 1, "a step was aborted and read again"
