# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""What is measured, and the interface of a loader's module."""

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
# When a measuring process may use a loader once before the measurement, to run its lazy imports: always; only if no
# worker is forked afterwards; never.
ALWAYS, ALONE, NEVER = "always", "alone", "never"


@dataclass(frozen=True)
class About:
    """Description of a loader.

    package: the package whose version is printed; "" for this checkout. format: the loader's own format; "" if it reads
    the table's files.
    """

    package: str
    format: str
    shuffle: str

    @property
    def exact(self) -> bool:
        """Whether every order of all rows is as likely as any other."""
        return self.shuffle.startswith("every row")


ABOUT = {
    "datacache": About("", "", "every row (clump 1)"),
    "arrow_dataset": About("pyarrow", "", "files, and rows within blocks of 8,192"),
    "arrow_take": About("pyarrow", "ipc", "every row"),
    "hf_map": About("datasets", "arrow", "every row"),
    "hf_streaming": About("datasets", "", "files, and rows within a buffer of 10,000 (images: 2,000)"),
    "mosaicml": About("mosaicml-streaming", "mds", "shards, and rows within blocks (py1e, its default)"),
    "lance_streaming": About("lancedb", "lance", "every row, in 8 splits"),
    "lance_permutation": About("lancedb", "lance", "every row"),
    "litdata": About("litdata", "litdata", "chunks of 64 MB, and rows within each"),
}

# Tensors by column name; the first dimension is the row. Binary columns are a list with one uint8 tensor per row.
Batch = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One epoch of one table with one loader, in batches of BATCH rows.

    data: the table in the loader's own format, if it has one. uri: our server's, for our loader. resumable: whether a
    state is needed, for loaders that use another class for it.
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
        """The batches of an epoch, or the rest of it after restore."""
        ...

    def state(self) -> Any:
        """The position of the iteration; picklable."""
        ...

    def restore(self, state: Any) -> None:
        """Makes the next iteration resume at a saved position."""
        ...

    def close(self) -> None:
        """Stops the iteration, processes and connections."""
        ...


class Loader(Protocol):
    """A module of loaderbench.loaders."""

    FIRST_USE: str  # ALWAYS, ALONE or NEVER

    def prepare(self, table: Table, data: Path) -> None:
        """Writes the table to the new directory `data` in the loader's own format; most loaders have none."""
        ...

    def open(self, case: Case) -> Source:
        """Opens the loader as its documentation recommends."""
        ...


def load(name: str) -> Loader:
    """The loader's module. Raises ImportError if its package is not installed."""
    module: Any = importlib.import_module(f"loaderbench.loaders.{name}")
    return module


def version(name: str) -> str:
    """The loader's package and version. Raises PackageNotFoundError if it is not installed."""
    package = ABOUT[name].package
    return f"{package} {importlib.metadata.version(package)}" if package else "of this checkout"
