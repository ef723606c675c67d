# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""All Python code blocks of the documentation run against a real cache, in the order of each page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from lake import Lake, Made
from small import served

pytest.importorskip("kubeflow.trainer", reason="runs in the training environment: make test-loader")

REPOSITORY = Path(__file__).resolve().parents[2]
ROWS, LENGTH = 2_100, 5  # more than two global batches of 1024
SCHEMA = pa.schema(
    [
        ("content", pa.string()),
        ("label", pa.int64()),
        ("tokens", pa.list_(pa.int64())),
        ("input_ids", pa.list_(pa.int64())),
        ("labels", pa.int64()),
    ]
)
# Code that a page assumes: the reader's model, and a Kubernetes cluster with datacache. The SDK is real, but it posts
# to a fake API server; test/e2e tests logs and status of real caches.
SDK = """
import kubeflow.trainer
import kubeflow_datacache.sdk as sdk
from api_server import trainer_client
client, posted = (context := trainer_client()).__enter__()
kubeflow.trainer.TrainerClient = lambda: client
sdk.cache_logs = lambda client, job, follow=False, server=None: iter([f"logs of {job}"])
sdk.cache_status = lambda client, job: f"status of {job}"
"""
MODEL = """
import torch
import lightning

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(5, 1)

    def forward(self, input_ids, labels):
        return {"loss": 1e-6 * (self.line(input_ids.float()).sum() + labels.sum())}

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = Model()

    def training_step(self, batch, index):
        return self.model(**batch)["loss"]

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

model, module = Model(), Module()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
POSTED = "train()\nassert len(posted) == 1, posted"
PAGES: dict[str, tuple[str, str]] = {  # page: (code to run before it, assertion to run after it)
    "README.md": (SDK, POSTED),
    "python/README.md": ("", "assert loader.stats().steps == 6"),
    "docs/use.md": (SDK, POSTED),
    "docs/migrate.md": ("", "assert validation.stats().steps == 9"),
    "docs/frameworks.md": (MODEL, "assert loader.stats().steps == 6"),
    "docs/scratch-volumes.md": (SDK, "assert len(posted) == 1, posted"),
}


@pytest.fixture(scope="module")
def endpoint(server: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cache of a table with the columns that the pages name."""
    folder = tmp_path_factory.mktemp("docs")
    ids = np.arange(ROWS)
    lists = pa.array((ids[:, None] + np.arange(LENGTH)).tolist(), pa.list_(pa.int64()))
    labels = pa.array(ids % 2)
    table = pa.Table.from_arrays([pa.array([f"text {i}" for i in ids]), labels, lists, lists, labels], schema=SCHEMA)
    made = Made("docs", Lake(folder).create("docs", SCHEMA, table).metadata_location)
    with served(server, folder, made) as one:
        yield one


def blocks_of(page: str) -> list[str]:
    """The Python code blocks of a page."""
    return re.findall(r"^```python\n(.*?)^```$", (REPOSITORY / page).read_text(), re.DOTALL | re.MULTILINE)


def test_no_page_with_python_is_left_out() -> None:
    pages = [REPOSITORY / "README.md", *REPOSITORY.glob("docs/*.md"), REPOSITORY / "python/README.md"]
    with_python = {str(page.relative_to(REPOSITORY)) for page in pages if blocks_of(str(page))}
    assert with_python == set(PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_every_block_runs(page: str, endpoint: str, tmp_path: Path) -> None:
    given, holds = PAGES[page]
    whole = "\n".join([given, *blocks_of(page), holds]).replace("grpc://127.0.0.1:50051", endpoint)
    script = tmp_path / "page.py"  # workers import this file, so all code must be under the guard
    script.write_text(f'if __name__ == "__main__":\n{textwrap.indent(whole, "    ")}\n')
    paths = [REPOSITORY / "python/src", REPOSITORY / "python/tests", os.environ.get("PYTHONPATH", "")]
    run = subprocess.run(
        [sys.executable, script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "DATACACHE_ENDPOINT": endpoint,
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
        },
    )
    assert run.returncode == 0, run.stderr
