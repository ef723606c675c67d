# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The Python blocks of a page of the documentation, and a program that is all of them."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Generator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from kit.deadline import limit
from lake import Lake, Made
from small import served

REPOSITORY = Path(__file__).resolve().parents[2]
ROWS, LENGTH = 2_100, 5  # more than two global batches of 1024
METADATA = "./warehouse/db/events/metadata/00003-5a1c.metadata.json"  # the table that the pages name
SCHEMA = pa.schema(
    [
        ("content", pa.string()),
        ("label", pa.int64()),
        ("tokens", pa.list_(pa.int64())),
        ("input_ids", pa.list_(pa.int64())),
        ("labels", pa.int64()),
    ]
)


class PageCache(NamedTuple):
    """A cache of a table with the columns that the pages name: its address, its program and the table's metadata."""

    endpoint: str
    server: Path
    metadata: str


@contextlib.contextmanager
def page_cache(server: Path, folder: Path) -> Generator[PageCache]:
    """A running PageCache."""
    ids = np.arange(ROWS)
    lists = pa.array((ids[:, None] + np.arange(LENGTH)).tolist(), pa.list_(pa.int64()))
    labels = pa.array(ids % 2)
    table = pa.Table.from_arrays([pa.array([f"text {i}" for i in ids]), labels, lists, lists, labels], schema=SCHEMA)
    made = Made("docs", Lake(folder).create("docs", SCHEMA, table).metadata_location)
    with served(server, folder, made) as endpoint:
        yield PageCache(endpoint, server, made.metadata)


def blocks_of(page: str) -> list[str]:
    """The Python blocks of a page."""
    return _blocks((REPOSITORY / page).read_text())


def sections_of(page: str) -> dict[str, str]:
    """The Python blocks of each section of a page as a program; "" is the beginning."""
    begin, *sections = re.split(r"^## (?=.*$)", (REPOSITORY / page).read_text(), flags=re.MULTILINE)
    titled = {"": begin, **{text.partition("\n")[0]: text for text in sections}}
    return {title: "\n".join(blocks) for title, text in titled.items() if (blocks := _blocks(text))}


def _blocks(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def run_page(page: str, given: str, holds: str, cache: PageCache, folder: Path) -> None:
    """Runs a page's blocks in their order, between what the page takes as given and what must hold afterwards."""
    whole = "\n".join([given, *blocks_of(page), holds])  # workers import it: so all of it stands under the guard
    run_script(guarded(whole), cache, folder)


def guarded(program: str) -> str:
    """The program, which does nothing when workers import it."""
    return f'if __name__ == "__main__":\n{textwrap.indent(program, "    ")}\n'


def run_script(program: str, cache: PageCache, folder: Path, **environment: str) -> None:
    """Runs a program as a script."""
    script = folder / "page.py"
    script.write_text(program.replace("grpc://127.0.0.1:50051", cache.endpoint).replace(METADATA, cache.metadata))
    paths = [REPOSITORY / "python/src", REPOSITORY / "python/tests", os.environ.get("PYTHONPATH", "")]
    run = subprocess.run(
        [sys.executable, script],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=3 * limit(),
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "PATH": os.pathsep.join([str(cache.server.parent), os.environ["PATH"]]),
            **dict.fromkeys(
                ("DATACACHE_ENDPOINT", "DATACACHE_ENDPOINT_WEB", "DATACACHE_ENDPOINT_CODE"), cache.endpoint
            ),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            **environment,
        },
    )
    assert run.returncode == 0, run.stdout + run.stderr
