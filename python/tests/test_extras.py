# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""If an optional package is missing, the import error says what to install."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROWS = "Batch(((Epoch(rows=1, global_batch=1)), Share()), StepBlock(range(1), 1, pa.record_batch({'x': [1]})), 0, 0)"
BATCH = f"""
import pyarrow as pa
from kubeflow_datacache.order.epoch import Epoch, Share
from kubeflow_datacache.rows.batch import Batch
from kubeflow_datacache.rows.block import StepBlock
batch = {ROWS}
"""
WITHOUT = """
import sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {missing!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize(
    ("missing", "code", "extra"),
    [
        ("torch", "import kubeflow_datacache.torch", "torch"),
        ("torch", f"{BATCH}batch.torch()", "torch"),
        ("pandas", f"{BATCH}batch.to_pandas()", "notebook"),
        ("kubeflow", "import kubeflow_datacache.sdk", "sdk"),
        ("transformers", "import kubeflow_datacache.torch.huggingface", "huggingface"),
        ("datasets", "from kubeflow_datacache.torch.trl import TrlRows\nTrlRows(None)", "trl"),
        ("kubeflow_datacache_server", "kubeflow_datacache.DataCache.local('x')", "server"),
    ],
    ids=["torch", "Batch.torch", "Batch.to_pandas", "sdk", "huggingface", "trl", "local"],
)
def test_the_error_names_the_extra(missing: str, code: str, extra: str) -> None:
    if missing in ("transformers", "datasets"):
        pytest.importorskip("torch", reason="runs in the training environment: make test-loader")
    script = f"{WITHOUT.format(missing=missing)}\nimport kubeflow_datacache\n{code}"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "src")}
    run = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    last = run.stderr.strip().splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: ")
    assert f"needs the package {missing}: pip install 'kubeflow-datacache[{extra}]'" in last
