# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The model: the rows of a snapshot by the rules of the Iceberg specification, from a table's plain data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .schema import LAST_UPDATED, ROW_ID, Field, List, Map, Primitive, Schema, Struct, Type
from .table import Entry, File, Manifest, Row, Snapshot, Table

_DAY = 86_400_000_000


class Refused(Exception):
    """The specification gives the table no rows."""


def rows(table: Table, snapshot: Snapshot | None, schema: Schema) -> list[Row]:
    """The rows of a snapshot in plan order: by data sequence number, path, position."""
    if snapshot is None:
        return []
    deletes = [e for m in snapshot.manifests for e in m.entries if e.status != "deleted" and e.file.content != "data"]
    files = [pair for m in snapshot.manifests if not m.deletes for pair in first_rows(m)]
    files.sort(key=lambda pair: (pair[0].sequence, location(table, pair[0].file)))
    return [
        project(schema.fields, row, e.file) | lineage(row, e, first, position)
        for e, first in files
        for position, row in remaining(table, e, deletes)
    ]


def first_rows(manifest: Manifest) -> Iterator[tuple[Entry, int | None]]:
    """The live entries of a data manifest and their first_row_id, which some inherit (specification, row lineage)."""
    following = manifest.first_row
    for e in manifest.entries:
        if e.status == "deleted":
            continue
        first = e.file.first_row
        if first is None and following is not None:
            first, following = following, following + len(e.file.rows)
        yield e, first


def lineage(row: Row, e: Entry, first: int | None, position: int) -> Row:
    """The row's lineage: what the file stores, else what it inherits."""
    if first is None:
        return {ROW_ID.id: None, LAST_UPDATED.id: None}
    stored, updated = row.get(ROW_ID.id), row.get(LAST_UPDATED.id)
    return {
        ROW_ID.id: first + position if stored is None else stored,
        LAST_UPDATED.id: e.sequence if updated is None else updated,
    }


def location(table: Table, file: File) -> bytes:
    """What a file's path is sorted by."""
    return f"{table.uri}/{file.path}".encode()


def remaining(table: Table, data: Entry, deletes: list[Entry]) -> Iterator[tuple[int, Row]]:
    """The rows of a data file that no delete applies to, and their positions."""
    mine = [d for d in deletes if applies(d, data)]
    vectors = [d for d in mine if d.file.content == "vector"]
    gone = {
        position
        for d in vectors or mine  # a deletion vector replaces the position deletes of its file
        for target, position in d.file.positions
        if target.path == data.file.path
    }
    equal = [Equality.of(table, d.file) for d in mine if d.file.content == "equality"]
    for position, row in enumerate(data.file.rows):
        if position not in gone and not any(e.matches(row, data.file) for e in equal):
            yield position, row


def applies(delete: Entry, data: Entry) -> bool:
    """Whether a delete file applies to a data file (specification, scan planning)."""
    f = delete.file
    if f.content == "equality":
        everywhere = not f.spec.fields
        return data.sequence < delete.sequence and (everywhere or same_partition(f, data.file))
    if data.sequence > delete.sequence:
        return False
    if f.content == "vector":
        return f.target is not None and f.target.path == data.file.path and same_partition(f, data.file)
    return same_partition(f, data.file)


def same_partition(a: File, b: File) -> bool:
    """Whether two files have the same partition spec and values."""
    return a.spec.id == b.spec.id and key(a.partition) == key(b.partition)


def key(value: Any) -> Any:
    """A hashable form in which NaN equals itself and values of different types differ."""
    match value:
        case float():
            return ("f", "nan" if value != value else value.hex())
        case tuple() | list():
            return tuple(key(v) for v in value)
    return (type(value).__name__, value)


@dataclass(frozen=True)
class Equality:
    """The rows of an equality delete file."""

    fields: list[tuple[tuple[Field, ...], Field]]  # with the structs that contain them
    keys: frozenset[Any]

    @staticmethod
    def of(table: Table, file: File) -> Equality:
        """The deletes of a file, in the newest types of the fields that it compares."""
        fields = [table.newest(i) for i in file.equality]
        return Equality(fields, frozenset(Equality._key(fields, row, file) for row in file.rows))

    @staticmethod
    def _key(fields: list[tuple[tuple[Field, ...], Field]], row: Row, file: File) -> Any:
        values = []
        for within, field in fields:
            chain = field
            for parent in reversed(within):
                chain = Field(parent.id, parent.name, Struct((chain,)))
            projected = project((Field(chain.id, chain.name, chain.type, default=chain.default),), row, file)
            values.append(reach(projected, within, field))
        return key(tuple(values))

    def matches(self, row: Row, data: File) -> bool:
        """Whether a row of a data file is deleted."""
        return self._key(self.fields, row, data) in self.keys


def reach(row: Row | None, within: tuple[Field, ...], field: Field) -> Any:
    """The value of a nested field."""
    for parent in within:
        row = row and row.get(parent.id)
    return row and row.get(field.id)


def project(fields: tuple[Field, ...], row: Row, file: File) -> Row:
    """A file's row with the columns of another schema (specification, column projection)."""
    have = {f.id: f for f in file.fields}
    return {f.id: _column(f, have.get(f.id), row, file) for f in fields}


def _column(to: Field, have: Field | None, row: Row, file: File) -> Any:
    if have is not None:
        return _promote(to.type, have.type, row.get(to.id), file)
    for p, value in zip(file.spec.fields, file.partition, strict=True):
        if p.source == to.id and p.transform == "identity":
            return _promote(to.type, p.source_type, value, file)
    if to.default is None and to.required:
        raise Refused(f"field {to.id} is required, and {file.path} lacks it")
    return to.default


def _promote(to: Type, have: Type, value: Any, file: File) -> Any:
    if value is None:
        return None
    match to, have:
        case Struct(), Struct():
            kids = {f.id: f for f in have.fields}
            return {f.id: _column(f, kids.get(f.id), value, file) for f in to.fields}
        case List(), List():
            return [_promote(to.element.type, have.element.type, v, file) for v in value]
        case Map(), Map():
            return [
                (_promote(to.key.type, have.key.type, k, file), _promote(to.value.type, have.value.type, v, file))
                for k, v in value
            ]  # fmt: skip
        case Primitive(), Primitive(base="date") if to.base == "timestamp":
            return value * _DAY
        case Primitive(), Primitive(base="date") if to.base == "timestamp_ns":
            return value * _DAY * 1000
    return value
