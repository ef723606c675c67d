# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""All Python code blocks of the documentation run against a real cache, in the order of each page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pages import REPOSITORY, PageCache, blocks_of, page_cache, run_page

pytest.importorskip("kubeflow.trainer", reason="runs in the training environment: make test-docs")

# Code that a page assumes: a Kubernetes cluster with datacache. The SDK is real, but it posts to a fake API server;
# test/e2e tests logs and status of real caches.
SDK = """
import kubeflow.trainer
import kubeflow_datacache.sdk as sdk
from api_server import trainer_client
client, posted = (context := trainer_client()).__enter__()
kubeflow.trainer.TrainerClient = lambda: client
sdk.cache_logs = lambda client, job, follow=False, server=None: iter([f"logs of {job}"])
sdk.cache_status = lambda client, job: f"status of {job}"
"""
# A cache that takes puts instead of the page's; Spark and Ray have tests of their own.
PUTS = """
from pathlib import Path
import pyarrow as pa
import pyarrow.flight as fl
import types
import kubeflow_datacache
kubeflow_datacache.spark = kubeflow_datacache.ray = types.SimpleNamespace(put=kubeflow_datacache.put)
kubeflow_datacache.commit = lambda cache, published, table: None  # test_commit_kills.py has a catalog
server = kubeflow_datacache.DataCache.local(puts=True, progress=False).__enter__()
class DataCache(kubeflow_datacache.DataCache):
    def __init__(self, _, **options): super().__init__(server.endpoint, **options)
kubeflow_datacache.DataCache, connect = DataCache, fl.connect
fl.connect = lambda at, **own: connect(at if own else server.endpoint, **own)
table = frame = dataset = pa.table({"content": [f"text {i}" for i in range(2048)]})
schema, batches_of, steps = table.schema, lambda part: table.to_batches(), []
train = steps.append
def tokenise(batch): return pa.record_batch({"length": pa.compute.utf8_length(batch["content"])})
Path("tokenizer.json").write_text("{}")
"""
POSTED = "train()\nassert len(posted) == 1, posted"
PAGES: dict[str, tuple[str, str]] = {  # page: (code to run before it, assertion to run after it)
    "README.md": (SDK, f"{POSTED}\nassert rows.num_rows > 0"),
    "python/README.md": ("", "assert loader.stats().steps == 6"),
    "docs/use.md": (SDK, POSTED),
    "docs/files.md": ("", "assert dataset.storage_uri == 'cache+hf://owner/name?config=en&split=train'"),
    "docs/delta.md": ("", "assert dataset.storage_uri == 'cache+delta+s3://bucket/events'"),
    "docs/migrate.md": ("", "assert validation.stats().steps == 9"),
    "docs/packing.md": ("", "assert loader.stats().steps == 3 and arguments['labels'].shape[0] == 1"),
    "docs/put.md": (
        PUTS,
        "assert len(steps) == 2 and made.rows == published.rows == 2048",
    ),
    "docs/fluid.md": (SDK, "assert len(posted) == 1, posted"),
    "docs/scratch-volumes.md": (SDK, "assert len(posted) == 1, posted"),
}
# examples/test_frameworks_page.py; test/e2e/bert_test.go
ELSEWHERE = {"docs/frameworks.md", "docs/bert.md"}


@pytest.fixture(scope="module")
def cache(server: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageCache]:
    """A cache of a table with the columns that the pages name."""
    with page_cache(server, tmp_path_factory.mktemp("docs")) as one:
        yield one


def test_no_page_with_python_is_left_out() -> None:
    pages = [REPOSITORY / "README.md", *REPOSITORY.glob("docs/*.md"), REPOSITORY / "python/README.md"]
    with_python = {str(page.relative_to(REPOSITORY)) for page in pages if blocks_of(str(page))}
    assert with_python == PAGES.keys() | ELSEWHERE


def test_blocks_with_workers_are_scripts() -> None:
    """test_every_block_runs guards whole pages, as workers import them; a block that a reader copies guards itself."""
    with_workers = [
        block
        for page in PAGES.keys() | ELSEWHERE
        for block in blocks_of(page)
        if re.search(r"StreamingDataLoader\([^)]*num_workers=[1-9]", block)
    ]
    assert len(with_workers) == 3
    for block in with_workers:
        assert 'if __name__ == "__main__":  # workers import the script' in block, block


@pytest.mark.parametrize("page", PAGES)
def test_every_block_runs(page: str, cache: PageCache, tmp_path: Path) -> None:
    given, holds = PAGES[page]
    run_page(page, given, holds, cache, tmp_path)
