# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Iceberg tables written without an Iceberg library, for types and metadata that no library of the tests writes."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from lake import Made

_SNAPSHOT = 77
_SYNC = bytes(range(16))

Json = dict[str, Any]


@dataclass(frozen=True)
class Entry:
    """A data file in a manifest. status: 0 existing, 1 added, 2 deleted."""

    path: Path
    first_row_id: int | None = None
    status: int = 1
    sequence: int | None = None
    file_sequence: int | None = None

    def rows(self) -> int:
        """The number of rows according to the file's footer."""
        return pq.read_metadata(self.path).num_rows


@dataclass(frozen=True)
class Manifest:
    """A manifest and its line in the manifest list."""

    entries: Sequence[Entry]
    first_row_id: int | None = None
    sequence: int = 1


@dataclass
class Table:
    """A table of one snapshot; columns are fields of an Iceberg schema, in its JSON form."""

    folder: Path
    columns: Sequence[Json]
    manifests: list[Manifest] = field(default_factory=list)
    version: int = 2
    properties: dict[str, str] = field(default_factory=dict)

    def parquet(self, name: str) -> Path:
        """The path of a data file that a test is about to write."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder / name

    def add(self, *paths: Path) -> Table:
        """Adds a manifest with files."""
        self.manifests.append(Manifest([Entry(p) for p in paths]))
        return self

    def write(self) -> Made:
        """Writes manifests, the manifest list and the metadata file."""
        schema: Json = {"type": "struct", "schema-id": 0, "fields": list(self.columns)}
        listed = [self._manifest(i, m, schema) for i, m in enumerate(self.manifests)]
        manifest_list = self.folder / "list.avro"
        manifest_list.write_bytes(_avro(self._fields(_LIST), listed, {"format-version": str(self.version)}))
        snapshot: Json = {
            "snapshot-id": _SNAPSHOT, "sequence-number": 9, "timestamp-ms": 1_700_000_000_000, "schema-id": 0,
            "manifest-list": str(manifest_list), "summary": {"operation": "append"},
        }  # fmt: skip
        metadata: Json = {
            "format-version": self.version, "table-uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1",
            "location": str(self.folder), "last-sequence-number": 9, "last-updated-ms": 1_700_000_000_000,
            "last-column-id": 1000, "current-schema-id": 0,
            "schemas": [schema], "default-spec-id": 0, "partition-specs": [{"spec-id": 0, "fields": []}],
            "last-partition-id": 999, "default-sort-order-id": 0, "sort-orders": [{"order-id": 0, "fields": []}],
            "properties": self.properties, "current-snapshot-id": _SNAPSHOT, "snapshots": [snapshot],
            "refs": {"main": {"snapshot-id": _SNAPSHOT, "type": "branch"}},
        }  # fmt: skip
        if self.version >= 3:
            metadata["next-row-id"] = 1_000_000
            snapshot |= {"first-row-id": 0, "added-rows": 0}
        path = self.folder / "v1.metadata.json"
        path.write_text(json.dumps(metadata))
        return Made(self.folder.name, str(path))

    def _fields(self, record: Json) -> Json:
        """The fields of a record in the table's format version."""
        kept = [f for f in record["fields"] if self.version >= 3 or f["name"] != "first_row_id"]
        return {
            **record,
            "fields": [{**f, "type": self._fields(f["type"])} if isinstance(f["type"], dict) else f for f in kept],
        }

    def _manifest(self, index: int, manifest: Manifest, schema: Json) -> Json:
        path = self.folder / f"manifest-{index}.avro"
        entries = [
            {
                "status": e.status, "snapshot_id": _SNAPSHOT, "sequence_number": e.sequence,
                "file_sequence_number": e.file_sequence,
                "data_file": {
                    "content": 0, "file_path": str(e.path), "file_format": "PARQUET", "partition": {},
                    "record_count": e.rows(), "file_size_in_bytes": e.path.stat().st_size,
                    "first_row_id": e.first_row_id,
                },
            }
            for e in manifest.entries
        ]  # fmt: skip
        head = {
            "schema": json.dumps(schema), "schema-id": "0", "partition-spec": "[]", "partition-spec-id": "0",
            "format-version": str(self.version), "content": "data",
        }  # fmt: skip
        path.write_bytes(_avro(self._fields(_ENTRY), entries, head))
        counted = {
            f"{what}_{unit}_count": sum(
                e.rows() if unit == "rows" else 1 for e in manifest.entries if e.status == status
            )
            for status, what in enumerate(("existing", "added", "deleted"))
            for unit in ("files", "rows")
        }
        return {
            "manifest_path": str(path), "manifest_length": path.stat().st_size, "partition_spec_id": 0, "content": 0,
            "sequence_number": manifest.sequence, "min_sequence_number": 1, "added_snapshot_id": _SNAPSHOT,
            "first_row_id": manifest.first_row_id, **counted,
        }  # fmt: skip


def column(number: int, name: str, kind: Any, *, required: bool = False) -> Json:
    """A column of a schema."""
    return {"id": number, "name": name, "type": kind, "required": required}


def _record(name: str, *fields: tuple[int, str, Any]) -> Json:
    return {
        "type": "record",
        "name": name,
        "fields": [
            {"name": n, "type": t, "field-id": i, **({"default": None} if isinstance(t, list) else {})}
            for i, n, t in fields
        ],
    }


_MAYBE_LONG = ["null", "long"]
_ENTRY = _record(
    "manifest_entry", (0, "status", "int"), (1, "snapshot_id", _MAYBE_LONG), (3, "sequence_number", _MAYBE_LONG),
    (4, "file_sequence_number", _MAYBE_LONG),
    (2, "data_file", _record(
        "r2", (134, "content", "int"), (100, "file_path", "string"), (101, "file_format", "string"),
        (102, "partition", _record("r102")), (103, "record_count", "long"), (104, "file_size_in_bytes", "long"),
        (142, "first_row_id", _MAYBE_LONG),
    )),
)  # fmt: skip
_LIST = _record(
    "manifest_file", (500, "manifest_path", "string"), (501, "manifest_length", "long"),
    (502, "partition_spec_id", "int"), (517, "content", "int"),
    (515, "sequence_number", "long"), (516, "min_sequence_number", "long"),
    (503, "added_snapshot_id", "long"), (504, "added_files_count", "int"), (505, "existing_files_count", "int"),
    (506, "deleted_files_count", "int"), (512, "added_rows_count", "long"), (513, "existing_rows_count", "long"),
    (514, "deleted_rows_count", "long"), (520, "first_row_id", _MAYBE_LONG),
)  # fmt: skip


def _avro(schema: Json, records: Sequence[Json], metadata: dict[str, str]) -> bytes:
    """An Avro object container file of one block."""
    out, block = BytesIO(), BytesIO()
    for record in records:
        _encode(block, schema, record)
    out.write(b"Obj\x01")
    metadata = {"avro.schema": json.dumps(schema), "avro.codec": "null", **metadata}
    _long(out, len(metadata))
    for key, value in metadata.items():
        _text(out, key)
        _text(out, value)
    _long(out, 0)
    out.write(_SYNC)
    if records:
        _long(out, len(records))
        _long(out, len(block.getvalue()))
        out.write(block.getvalue() + _SYNC)
    return out.getvalue()


def _encode(out: BytesIO, kind: Any, value: Any) -> None:
    if isinstance(kind, list):  # null or one other type
        _long(out, 0 if value is None else 1)
        if value is not None:
            _encode(out, kind[1], value)
    elif isinstance(kind, dict):
        for f in kind["fields"]:
            _encode(out, f["type"], value[f["name"]])
    elif kind == "string":
        _text(out, value)
    else:
        _long(out, value)


def _text(out: BytesIO, value: str) -> None:
    _long(out, len(value.encode()))
    out.write(value.encode())


def _long(out: BytesIO, value: int) -> None:
    value = (value << 1) ^ (value >> 63)
    while value > 0x7F:
        out.write(bytes([value & 0x7F | 0x80]))
        value >>= 7
    out.write(bytes([value]))


class Thrift:
    """Fields of a Parquet footer in Thrift's compact protocol, read to (field, type, value) and written back.

    A struct is a list of fields and a list is (element type, elements), so that unknown fields stay as they are.
    """

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def struct(self) -> list[list[Any]]:
        """Reads a struct."""
        fields, number = [], 0
        while (head := self._byte()) != 0:
            number = number + (head >> 4) if head >> 4 else self._zigzag()
            fields.append([number, head & 15, self._value(head & 15)])
        return fields

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _varint(self) -> int:
        value, shift = 0, 0
        while (byte := self._byte()) & 0x80:
            value, shift = value | (byte & 0x7F) << shift, shift + 7
        return value | byte << shift

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _value(self, kind: int) -> Any:
        if kind in (1, 2):
            return kind == 1
        if kind == 3:
            return self._byte()
        if kind in (4, 5, 6):
            return self._zigzag()
        if kind == 7:
            self._at += 8
            return self._data[self._at - 8 : self._at]
        if kind == 8:
            n = self._varint()
            self._at += n
            return self._data[self._at - n : self._at]
        if kind == 9:
            head = self._byte()
            n = head >> 4 if head >> 4 < 15 else self._varint()
            return head & 15, [self._byte() if head & 15 in (1, 2) else self._value(head & 15) for _ in range(n)]
        assert kind == 12, f"Thrift type {kind}"
        return self.struct()


def thrift(fields: Iterable[Sequence[Any]]) -> bytes:
    """Writes a struct."""
    out, last = BytesIO(), 0
    for number, kind, value in fields:
        kind = (1 if value else 2) if kind in (1, 2) else kind
        if 0 < number - last < 16:
            out.write(bytes([(number - last) << 4 | kind]))
        else:
            out.write(bytes([kind]))
            _long(out, number)
        last = number
        if kind not in (1, 2):
            _write(out, kind, value)
    return out.getvalue() + b"\0"


def _write(out: BytesIO, kind: int, value: Any) -> None:
    if kind in (4, 5, 6):
        _long(out, value)
    elif kind in (1, 2, 3):
        out.write(bytes([value]))
    elif kind == 7:
        out.write(value)
    elif kind == 8:
        _varint(out, len(value))
        out.write(value)
    elif kind == 9:
        of, elements = value
        if len(elements) < 15:
            out.write(bytes([len(elements) << 4 | of]))
        else:
            out.write(bytes([0xF0 | of]))
            _varint(out, len(elements))
        for e in elements:
            _write(out, of, e)
    else:
        out.write(thrift(value))


def _varint(out: BytesIO, value: int) -> None:
    while value > 0x7F:
        out.write(bytes([value & 0x7F | 0x80]))
        value >>= 7
    out.write(bytes([value]))


def edit_footer(path: Path, edit: Any) -> Path:
    """Rewrites a Parquet file's footer; edit changes its fields in place."""
    data = path.read_bytes()
    (length,) = struct.unpack("<I", data[-8:-4])
    fields = Thrift(data[-8 - length : -8]).struct()
    edit(fields)
    footer = thrift(fields)
    path.write_bytes(data[: -8 - length] + footer + struct.pack("<I", len(footer)) + b"PAR1")
    return path


def get(fields: list[list[Any]], number: int) -> Any:
    """The value of a struct's field; None if it has none."""
    return next((value for n, _, value in fields if n == number), None)


def put(fields: list[list[Any]], number: int, kind: int, value: Any) -> None:
    """Sets a struct's field."""
    fields[:] = sorted([*(f for f in fields if f[0] != number), [number, kind, value]], key=lambda f: f[0])


#: Thrift types.
I64, STRUCT = 6, 12


def element(fields: list[list[Any]], name: str) -> list[list[Any]]:
    """The schema element of a column."""
    return next(e for e in get(fields, 2)[1] if get(e, 4) == name.encode())


def annotate(path: Path, **logical: int) -> Path:
    """Sets the logical types of columns, each to an empty type with this number in the union LogicalType."""

    def edit(fields: list[list[Any]]) -> None:
        for name, number in logical.items():
            put(element(fields, name), 10, STRUCT, [[number, STRUCT, []]])

    return edit_footer(path, edit)
