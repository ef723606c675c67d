# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""What is measured, and what a loader's module has to offer."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from benchlib.tables import Table

BATCH = 128
SEED = 7
# When a measuring process may use a loader for a first time, to have its lazy imports done, before what is measured:
# always; only where no worker is forked after it; never.
ALWAYS, ALONE, NEVER = "always", "alone", "never"


@dataclass(frozen=True)
class About:
    """What is to be said of a loader.

    package: whose version is printed, "" for this checkout. format: its own one, "" for the table's own files.
    """

    package: str
    format: str
    shuffle: str


ABOUT = {
    "datacache": About("", "", "every row (clump 1)"),
    "arrow_dataset": About("pyarrow", "", "files, and rows within blocks of 8,192"),
    "hf_map": About("datasets", "arrow", "every row"),
    "hf_streaming": About("datasets", "", "files, and rows within a buffer of 10,000 (images: 2,000)"),
    "mosaicml": About("mosaicml-streaming", "mds", "shards, and rows within blocks (py1e, its default)"),
    "lance_streaming": About("lancedb", "lance", "every row, in 8 splits"),
    "lance_permutation": About("lancedb", "lance", "every row"),
    "litdata": About("litdata", "litdata", "chunks of 64 MB, and rows within each"),
}

# A column's tensor, rows first; for bytes, whose rows differ in length, a list of one uint8 tensor a row.
Batch = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One epoch of one table through one loader, in batches of BATCH rows.

    data: where the table is in the loader's own format, if it has one. uri: our server's, for ours.
    resumable: whether a state is wanted, for loaders that have another class for it.
    """

    table: Table
    data: Path
    shuffle: bool = False
    workers: int = 0
    uri: str = ""
    resumable: bool = False


class Source(Protocol):
    """An opened loader."""

    def __iter__(self) -> Iterator[Batch]:
        """The batches of an epoch, or what is left of it after restore."""
        ...

    def state(self) -> Any:
        """Where the iteration stands, to be pickled."""
        ...

    def restore(self, state: Any) -> None:
        """Makes the next iteration go on where the state was taken."""
        ...

    def close(self) -> None:
        """Ends iteration, processes and connections."""
        ...


class Loader(Protocol):
    """A module of loaderbench.loaders."""

    FIRST_USE: str  # ALWAYS, ALONE or NEVER

    def prepare(self, table: Table, data: Path) -> None:
        """Writes the table to the new directory data in the loader's own format; most need none."""
        ...

    def open(self, case: Case) -> Source:
        """The loader as its documentation would have it used."""
        ...


def load(name: str) -> Loader:
    """The loader's module; ImportError where its package is not installed."""
    module: Any = importlib.import_module(f"loaderbench.loaders.{name}")
    return module


def version(name: str) -> str:
    """The loader's package and version; PackageNotFoundError where it is not installed."""
    package = ABOUT[name].package
    return f"{package} {importlib.metadata.version(package)}" if package else "of this checkout"
