# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""What somebody on the network sees of a cache that takes known readers, and of one that speaks plain text."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from kit.deadline import limit


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="captures in a network of its own: needs root"
)
@pytest.mark.parametrize("mode", ["TLS", "Plain"])
def test_packets_hold_no_row_token_or_filter(server: Path, tmp_path: Path, mode: str) -> None:
    script = str(Path(__file__).with_name("captured.py"))
    alone = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    done = subprocess.run(
        [*alone, sys.executable, script, str(server), str(tmp_path), mode],
        capture_output=True,
        text=True,
        check=False,
        timeout=limit(),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["epoch"]
    assert found["bytes"] > 10_000
    seen = [name for name, packets in found["seen"].items() if packets]
    assert seen == ([] if mode == "TLS" else ["row", "token", "filter", "cache's filter"]), found
