# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A lakehouse for the tests: one pyiceberg catalog in a folder or bucket, and the tables in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.io import load_file_io
from pyiceberg.table import StaticTable, Table


@dataclass(frozen=True)
class Selection:
    """The part of a table that a cache serves, as command-line options."""

    columns: tuple[str, ...] = ()
    where: str = ""
    snapshot_id: int | None = None
    ref: str = ""
    as_of: str = ""

    def flags(self) -> list[str]:
        """The selection as flags of cacheserver."""
        out: list[str] = []
        if self.columns:
            out += ["--columns", ",".join(self.columns)]
        if self.where:
            out += ["--filter", self.where]
        if self.snapshot_id is not None:
            out += ["--snapshot-id", str(self.snapshot_id)]
        if self.ref:
            out += ["--ref", self.ref]
        if self.as_of:
            out += ["--as-of", self.as_of]
        return out


ALL = Selection()


@dataclass(frozen=True)
class Made:
    """A written table, pinned to one metadata file."""

    name: str
    metadata: str
    properties: dict[str, str] = field(default_factory=dict)

    def open(self) -> StaticTable:
        """Opens the table in pyiceberg."""
        return StaticTable.from_metadata(self.metadata, self.properties)

    def scan(
        self,
        *,
        columns: tuple[str, ...] = (),
        where: BooleanExpression | None = None,
        snapshot_id: int | None = None,
    ) -> pa.Table:
        """The rows that the cache must serve, read by pyiceberg."""
        scan = self.open().scan(
            row_filter=where if where is not None else AlwaysTrue(),
            selected_fields=columns or ("*",),
            snapshot_id=snapshot_id,
        )
        return scan.to_arrow()

    def files(self) -> list[str]:
        """The data files of the current snapshot, as URIs."""
        return [task.file.file_path for task in self.open().scan().plan_files()]


Builder = Callable[["Lake"], Table]


class Lake:
    """Creates each table once per session, when a test first uses it."""

    def __init__(self, folder: Path, warehouse: str | None = None, properties: dict[str, str] | None = None) -> None:
        self.folder = folder
        self.properties = properties or {}
        self.catalog: Catalog = SqlCatalog(
            "lake",
            uri=f"sqlite:///{folder}/catalog.db",
            warehouse=warehouse or f"file://{folder}/warehouse",
            **self.properties,
        )
        self.catalog.create_namespace("lake")
        self._made: dict[str, Made] = {}

    def table(self, name: str, builder: Builder) -> Made:
        """Returns the table of this name; calls the builder only the first time."""
        if name not in self._made:
            self._made[name] = self.pin(name, builder(self))
        return self._made[name]

    def pin(self, name: str, table: Table) -> Made:
        """Pins the table at its current metadata file."""
        return Made(name, table.metadata_location, self.properties)

    def create(self, name: str, schema: Any, rows: pa.Table | list[pa.Table] = (), **options: Any) -> Table:
        """Creates a table, with one append per element of rows."""
        table = self.catalog.create_table(f"lake.{name}", schema=schema, **options)
        for part in [rows] if isinstance(rows, pa.Table) else rows:
            table.append(part)
        return table

    def write(self, name: str, content: bytes) -> str:
        """Writes a file that is not from pyiceberg beside the tables; returns its URI."""
        uri = f"{self.catalog.properties['warehouse']}/loose/{name}"
        with load_file_io(self.properties, uri).new_output(uri).create(overwrite=True) as out:
            out.write(content)
        return uri
