# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A table as plain data: what generate.py draws, write.py writes and oracle.py reads."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from .schema import Field, Primitive, Schema

Row = dict[int, Any]  # a row's plain values by the ids of the top-level fields


@dataclass(frozen=True)
class PartitionField:
    """A field of a partition spec."""

    id: int
    name: str
    source: int
    transform: str
    source_type: Primitive  # when the field was added


@dataclass(frozen=True)
class Spec:
    """A partition spec."""

    id: int
    fields: tuple[PartitionField, ...] = ()


@dataclass
class Layout:
    """How a Parquet file is written."""

    groups: list[int]  # rows of each row group
    ids: bool = True  # with field ids
    options: dict[str, Any] = field(default_factory=dict)  # of pyarrow.parquet.ParquetWriter
    raw: int | None = None  # a seed: rawparquet.py writes the file if it can


Mode = Literal["none", "counts", "truncate", "full"]


@dataclass
class Metrics:
    """What a manifest says of a file's columns."""

    mode: Mode = "full"
    length: int = 16  # of truncated bounds
    wide: bool = False  # bounds further apart than the values
    only: frozenset[int] | None = None  # the fields that have any; None: all
    splits: bool = True  # with split offsets


@dataclass
class File:
    """A data file, or a delete file, with what its manifest says of it."""

    path: str  # below the table's folder
    content: Literal["data", "positions", "equality", "vector"]
    spec: Spec
    partition: tuple[Any, ...]
    fields: tuple[Field, ...]  # the columns in the file
    rows: list[Row]
    layout: Layout
    metrics: Metrics = field(default_factory=Metrics)
    equality: tuple[int, ...] = ()  # ids of the fields that an equality delete compares
    target: File | None = None  # the data file of a deletion vector
    positions: list[tuple[File, int]] = field(default_factory=list)  # of a position delete file or deletion vector
    first_row: int | None = None  # first_row_id, of format v3
    # Set when the file is written.
    size: int = 0
    offset: int = 0  # of a deletion vector in its Puffin file
    length: int = 0
    starts: list[int] = field(default_factory=list)  # where row groups begin


Status = Literal["existing", "added", "deleted"]


@dataclass
class Entry:
    """A file in a manifest."""

    status: Status
    file: File
    sequence: int  # data sequence number, 0 in format v1
    file_sequence: int
    snapshot: int
    inherits: bool  # sequence numbers and snapshot are null in the manifest


@dataclass
class Manifest:
    """A manifest."""

    path: str
    spec: Spec
    schema: Schema
    entries: list[Entry]
    sequence: int
    snapshot: int
    deletes: bool = False
    first_row: int | None = None
    codec: str = "null"
    block: int = 1000
    length: int = 0  # set when it is written


@dataclass
class Snapshot:
    """A snapshot."""

    id: int
    parent: int | None
    sequence: int
    time: int
    schema: Schema
    manifests: list[Manifest]
    operation: str
    list_path: str
    first_row: int | None = None
    added_rows: int = 0


@dataclass
class Table:
    """A table with its history."""

    version: int
    schemas: list[Schema]  # the current one is the last
    specs: list[Spec]  # the default one is the last
    snapshots: list[Snapshot] = field(default_factory=list)
    refs: dict[str, tuple[str, int]] = field(default_factory=dict)  # name to kind and snapshot, without main
    current: int | None = None
    log: list[tuple[int, int]] = field(default_factory=list)  # times and ids of current snapshots
    mapping: bool = False  # it has a name mapping
    names: dict[int, list[str]] = field(default_factory=dict)  # all names that fields had, for the mapping
    properties: dict[str, str] = field(default_factory=dict)
    uri: str = "file://"  # how locations begin
    style: dict[str, Any] = field(default_factory=dict)  # of metadata and manifests
    next_row: int = 0

    @property
    def schema(self) -> Schema:
        """The current schema."""
        return self.schemas[-1]

    def snapshot(self, identifier: int) -> Snapshot:
        """The snapshot of an id."""
        return next(s for s in self.snapshots if s.id == identifier)

    def newest(self, identifier: int) -> tuple[tuple[Field, ...], Field]:
        """A field outside lists and maps, optional, with the structs around it, from the newest schema that has it."""
        for schema in reversed(self.schemas):
            for within, f in schema.leaves():
                if f.id == identifier:
                    return within, replace(f, required=False)
        raise KeyError(identifier)

    def files(self) -> list[File]:
        """Every file of every snapshot, once."""
        seen: dict[int, File] = {}
        for snapshot in self.snapshots:
            for manifest in snapshot.manifests:
                for entry in manifest.entries:
                    seen.setdefault(id(entry.file), entry.file)
        return list(seen.values())
