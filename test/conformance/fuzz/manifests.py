# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Writes manifests and manifest lists as Avro."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from . import avro
from .metrics import bounds, columns_of
from .schema import Primitive
from .table import Entry, File, Manifest, Snapshot, Spec, Table
from .transforms import bytes_of, result

# Changes what is written: called with a kind, a path and the value.
Tamper = Callable[[str, str, Any], Any]

_CONTENT = {"data": 0, "positions": 1, "equality": 2, "vector": 1}
_COUNTED = ("added", "existing", "deleted")
_STATUS = {"existing": 0, "added": 1, "deleted": 2}


def field(identifier: int, name: str, of: Any, optional: bool = True) -> dict[str, Any]:
    """A field of an Avro record with an Iceberg field id."""
    out: dict[str, Any] = {"name": name, "type": ["null", of] if optional else of, "field-id": identifier}
    return {**out, "default": None} if optional else out


def _map(key: int, value: int, of: str) -> dict[str, Any]:
    pair = [field(key, "key", "int", False), field(value, "value", of, False)]
    return {
        "type": "array", "items": {"type": "record", "name": f"k{key}_v{value}", "fields": pair}, "logicalType": "map",
    }  # fmt: skip


def _list(element: int, of: str) -> dict[str, Any]:
    return {"type": "array", "items": of, "element-id": element}


def avro_type(t: Primitive, style: dict[str, Any], defined: set[str]) -> Any:
    """The Avro type of a partition value. A fixed type is defined where it is first used, then named, as Java does."""
    simple = {
        "boolean": "boolean", "int": "int", "long": "long", "float": "float", "double": "double", "string": "string",
        "binary": "bytes", "date": {"type": "int", "logicalType": "date"},
        "time": {"type": "long", "logicalType": "time-micros"},
        "timestamp": {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": False},
        "timestamptz": {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": True},
        "timestamp_ns": {"type": "long", "logicalType": "timestamp-nanos", "adjust-to-utc": False},
        "timestamptz_ns": {"type": "long", "logicalType": "timestamp-nanos", "adjust-to-utc": True},
    }  # fmt: skip
    fixed: dict[str, Any] = {}
    match t.base:
        case "decimal":
            precision, scale = t.parameters
            fixed = {
                "name": f"decimal_{precision}_{scale}", "size": decimal_size(precision), "logicalType": "decimal",
                "precision": precision, "scale": scale,
            }  # fmt: skip
        case "fixed":
            fixed = {"name": f"fixed_{t.parameters[0]}", "size": t.parameters[0]}
        case "uuid":
            fixed = {"name": "uuid_fixed", "size": 16, "logicalType": "uuid"}
        case "date" if style.get("plain days"):
            return "int"
    if not fixed:
        return simple[t.base]
    if fixed["name"] in defined:
        return fixed["name"]
    defined.add(fixed["name"])
    return {"type": "fixed", **fixed}


def decimal_size(precision: int) -> int:
    """The least number of bytes for decimals of a precision."""
    return next(n for n in range(1, 17) if 10**precision - 1 < 1 << (8 * n - 1))


def avro_value(t: Primitive, value: Any) -> Any:
    """A partition value as avro.py takes it."""
    if value is not None and t.base == "decimal":
        return value.to_bytes(decimal_size(t.parameters[0]), "big", signed=True)
    return value


def safe(name: str) -> str:
    """A partition field's name as Avro allows it."""
    return "".join(c if c.isascii() and (c.isalnum() or c == "_") else f"_x{ord(c):X}" for c in name)


def data_file_schema(table: Table, spec: Spec) -> dict[str, Any]:
    """The Avro schema of data_file."""
    defined: set[str] = set()
    types = [avro_type(result(p.transform, p.source_type), table.style, defined) for p in spec.fields]
    partition = [field(p.id, safe(p.name), t) for p, t in zip(spec.fields, types, strict=True)]
    fields = [
        field(134, "content", "int", False),
        field(100, "file_path", "string", False),
        field(101, "file_format", "string", False),
        field(102, "partition", {"type": "record", "name": "r102", "fields": partition}, False),
        field(103, "record_count", "long", False),
        field(104, "file_size_in_bytes", "long", False),
        field(108, "column_sizes", _map(117, 118, "long")),
        field(109, "value_counts", _map(119, 120, "long")),
        field(110, "null_value_counts", _map(121, 122, "long")),
        field(137, "nan_value_counts", _map(138, 139, "long")),
        field(125, "lower_bounds", _map(126, 127, "bytes")),
        field(128, "upper_bounds", _map(129, 130, "bytes")),
        field(131, "key_metadata", "bytes"),
        field(132, "split_offsets", _list(133, "long")),
        field(135, "equality_ids", _list(136, "int")),
        field(140, "sort_order_id", "int"),
    ]
    if table.version == 1:
        fields = [f for f in fields if f["name"] not in ("content", "equality_ids")]
        fields.insert(5, field(105, "block_size_in_bytes", "long", False))
    if table.version == 3:
        fields += [
            field(142, "first_row_id", "long"),
            field(143, "referenced_data_file", "string"),
            field(144, "content_offset", "long"),
            field(145, "content_size_in_bytes", "long"),
        ]
    if table.version == 2 and table.style.get("references"):
        fields.append(field(143, "referenced_data_file", "string"))
    if table.style.get("few fields"):  # optional fields that a writer does not know
        fields = [f for f in fields if f["name"] not in ("column_sizes", "key_metadata", "sort_order_id")]
    return {"type": "record", "name": "r2", "fields": fields}


def write_manifest(table: Table, manifest: Manifest, tamper: Tamper) -> bytes:
    """A manifest's bytes."""
    inner = field(2, "data_file", data_file_schema(table, manifest.spec), False)
    fields = [field(0, "status", "int", False), field(1, "snapshot_id", "long", table.version > 1)]
    if table.version > 1:
        fields += [field(3, "sequence_number", "long"), field(4, "file_sequence_number", "long")]
    schema = {"type": "record", "name": "manifest_entry", "fields": [*fields, inner]}
    metadata = {
        "schema": json.dumps(manifest.schema.json()),
        "schema-id": str(manifest.schema.id),
        "partition-spec": json.dumps(spec_fields(manifest.spec)),
        "partition-spec-id": str(manifest.spec.id),
        "format-version": str(table.version),
    }
    if table.version > 1:
        metadata["content"] = "deletes" if manifest.deletes else "data"
    records = tamper("entries", manifest.path, [entry_record(table, e) for e in manifest.entries])
    return avro.write(schema, records, metadata, manifest.codec, manifest.block)


def spec_fields(spec: Spec) -> list[dict[str, Any]]:
    """A partition spec's fields in JSON."""
    return [{"source-id": p.source, "field-id": p.id, "name": p.name, "transform": p.transform} for p in spec.fields]


def entry_record(table: Table, e: Entry) -> dict[str, Any]:
    """An entry as avro.py takes it."""
    inherits = e.inherits and table.version > 1
    return {
        "status": _STATUS[e.status],
        "snapshot_id": None if inherits else e.snapshot,
        "sequence_number": None if inherits else e.sequence,
        "file_sequence_number": None if inherits else e.file_sequence,
        "data_file": file_record(table, e.file),
    }


def file_record(table: Table, file: File) -> dict[str, Any]:
    """A file as avro.py takes it."""
    columns = columns_of(file)
    targets = (
        {f.path for f, _ in file.positions} if table.style.get("references") or file.content == "vector" else set()
    )
    types = [result(p.transform, p.source_type) for p in file.spec.fields]
    values = zip(file.spec.fields, types, file.partition, strict=True)
    vector = file.content == "vector"

    def pairs(of: dict[int, Any]) -> list[dict[str, Any]] | None:
        return [{"key": k, "value": v} for k, v in of.items()] or None

    return {
        "content": _CONTENT[file.content],
        "file_path": f"{table.uri}/{file.path}",
        "file_format": "PUFFIN" if vector else "PARQUET",
        "partition": {safe(p.name): avro_value(t, v) for p, t, v in values},
        "record_count": len(file.positions) if vector else len(file.rows),
        "file_size_in_bytes": file.size,
        "block_size_in_bytes": 64 << 20,
        "column_sizes": None,
        "value_counts": pairs(columns.values),
        "null_value_counts": pairs(columns.nulls),
        "nan_value_counts": pairs(columns.nans),
        "lower_bounds": pairs(columns.lower),
        "upper_bounds": pairs(columns.upper),
        "key_metadata": None,
        "split_offsets": (file.starts or None) if file.metrics.splits else None,
        "equality_ids": list(file.equality) or None,
        "sort_order_id": None,
        "first_row_id": file.first_row,
        "referenced_data_file": f"{table.uri}/{targets.pop()}" if len(targets) == 1 else None,
        "content_offset": file.offset if vector else None,
        "content_size_in_bytes": file.length if vector else None,
    }


def _summaries(manifest: Manifest) -> list[dict[str, Any]]:
    """What a manifest list says of the partitions in a manifest."""
    out = []
    for i, p in enumerate(manifest.spec.fields):
        t = result(p.transform, p.source_type)
        all_values = [e.file.partition[i] for e in manifest.entries]
        known = [v for v in all_values if v is not None and v == v]
        lower, upper = bounds(t, known, None, False) if known else (None, None)
        out.append({
            "contains_null": None in all_values,
            "contains_nan": any(v != v for v in all_values),
            "lower_bound": None if lower is None else bytes_of(t, lower),
            "upper_bound": None if upper is None else bytes_of(t, upper),
        })  # fmt: skip
    return out


def write_list(table: Table, snapshot: Snapshot, tamper: Tamper) -> bytes:
    """A manifest list's bytes."""
    two = table.version > 1
    summary = [
        field(509, "contains_null", "boolean", False), field(518, "contains_nan", "boolean"),
        field(510, "lower_bound", "bytes"), field(511, "upper_bound", "bytes"),
    ]  # fmt: skip
    file = "" if two else "data_"
    record = {"type": "record", "name": "r508", "fields": summary}
    fields = [
        field(500, "manifest_path", "string", False),
        field(501, "manifest_length", "long", False),
        field(502, "partition_spec_id", "int", False),
        *([field(517, "content", "int", False)] if two else []),
        *([field(515, "sequence_number", "long", False)] if two else []),
        *([field(516, "min_sequence_number", "long", False)] if two else []),
        field(503, "added_snapshot_id", "long", False),
        *(field(504 + i, f"{what}_{file}files_count", "int", not two) for i, what in enumerate(_COUNTED)),
        *(field(512 + i, f"{what}_rows_count", "long", not two) for i, what in enumerate(_COUNTED)),
        field(507, "partitions", {"type": "array", "items": record, "element-id": 508}),
        field(519, "key_metadata", "bytes"),
        *([field(520, "first_row_id", "long")] if table.version == 3 else []),
    ]
    schema = {"type": "record", "name": "manifest_file", "fields": fields}
    metadata = {
        "snapshot-id": str(snapshot.id), "parent-snapshot-id": str(snapshot.parent or "null"),
        "format-version": str(table.version), **({"sequence-number": str(snapshot.sequence)} if two else {}),
    }  # fmt: skip
    records = tamper("manifests", snapshot.list_path, [_list_record(table, m) for m in snapshot.manifests])
    style = table.style
    return avro.write(schema, records, metadata, style.get("list codec", "null"), style.get("list block", 1000))


def _list_record(table: Table, m: Manifest) -> dict[str, Any]:
    out: dict[str, Any] = {
        "manifest_path": f"{table.uri}/{m.path}", "manifest_length": m.length, "partition_spec_id": m.spec.id,
        "content": int(m.deletes), "sequence_number": m.sequence,
        "min_sequence_number": min((e.sequence for e in m.entries if e.status != "deleted"), default=m.sequence),
        "added_snapshot_id": m.snapshot, "key_metadata": None, "first_row_id": m.first_row,
        "partitions": None if table.style.get("no summaries") else _summaries(m),
    }  # fmt: skip
    for what in _COUNTED:
        files = [e.file for e in m.entries if e.status == what]
        out[f"{what}_files_count"] = out[f"{what}_data_files_count"] = len(files)
        out[f"{what}_rows_count"] = sum(len(f.positions) if f.content == "vector" else len(f.rows) for f in files)
    return out
