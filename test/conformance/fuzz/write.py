# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Writes a table to a folder."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from . import deletes
from .datafile import write_parquet
from .manifests import Tamper, spec_fields, write_list, write_manifest
from .schema import Field, children
from .table import File, Snapshot, Table


def write(table: Table, folder: Path, tamper: Tamper = lambda kind, path, value: value) -> Path:
    """Writes all files of the table; returns its metadata file.

    tamper may change what is written: the "bytes" of each file, the "entries" of manifests, the "manifests" of manifest
    lists, and the "metadata".
    """

    def put(path: str, content: bytes) -> int:
        to = folder / path
        to.parent.mkdir(parents=True, exist_ok=True)
        if (tampered := tamper("bytes", path, content)) is not None:
            to.write_bytes(tampered)
        return len(content)

    table.uri = f"{table.style.get('scheme', '')}{folder}"
    vectors: dict[str, list[File]] = defaultdict(list)
    for file in table.files():
        if file.content == "vector":
            vectors[file.path].append(file)
            continue
        if file.content == "positions":
            file.fields = deletes.POSITION_FIELDS
            path, position = (f.id for f in file.fields)
            file.rows = [{path: f"{table.uri}/{target.path}", position: p} for target, p in file.positions]
        file.size = put(file.path, write_parquet(file))
    for path, files in vectors.items():
        size = put(path, deletes.write_puffin(files, table.uri, table.style.get("runs", False)))
        for file in files:
            file.size = size
    written: set[str] = set()
    for snapshot in table.snapshots:
        for manifest in snapshot.manifests:
            if manifest.path not in written:
                manifest.length = put(manifest.path, write_manifest(table, manifest, tamper))
                written.add(manifest.path)
        put(snapshot.list_path, write_list(table, snapshot, tamper))
    text = json.dumps(tamper("metadata", "", metadata(table))).encode()
    packed = table.style.get("gzip", False)
    name = "metadata/00001-fuzz.gz.metadata.json" if packed else "metadata/00001-fuzz.metadata.json"
    put(name, gzip.compress(text) if packed else text)
    return folder / name


def metadata(table: Table) -> dict[str, Any]:
    """The table's metadata."""
    last_time = max((s.time for s in table.snapshots), default=1_700_000_000_000)
    out: dict[str, Any] = {
        "format-version": table.version,
        "table-uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1",
        "location": table.uri,
        "last-updated-ms": last_time,
        "last-column-id": max((f.id for s in table.schemas for f in _all(s.fields)), default=0),
        "schemas": [s.json() for s in table.schemas],
        "current-schema-id": table.schema.id,
        "partition-specs": [{"spec-id": s.id, "fields": spec_fields(s)} for s in table.specs],
        "default-spec-id": table.specs[-1].id,
        "last-partition-id": max((p.id for s in table.specs for p in s.fields), default=999),
        "properties": dict(table.properties),
        "sort-orders": [{"order-id": 0, "fields": []}],
        "default-sort-order-id": 0,
        "snapshots": [_snapshot(table, s) for s in table.snapshots],
        "snapshot-log": [{"timestamp-ms": t, "snapshot-id": i} for t, i in table.log],
        "metadata-log": [],
    }
    if table.mapping:
        out["properties"]["schema.name-mapping.default"] = json.dumps(
            _mapping(table, [s.fields for s in table.schemas])
        )
    if table.current is not None:
        out["current-snapshot-id"] = table.current
    elif table.style.get("minus one"):
        out["current-snapshot-id"] = -1
    if table.version > 1:
        out["last-sequence-number"] = max((s.sequence for s in table.snapshots), default=0)
    if table.version == 3:
        out["next-row-id"] = table.next_row
    if table.version == 1 or table.style.get("old keys"):
        out["schema"] = table.schema.json()
        out["partition-spec"] = spec_fields(table.specs[-1])
    if table.version == 1 and table.style.get("old keys only") and len(table.schemas) + len(table.specs) == 2:
        for key in ("schemas", "current-schema-id", "partition-specs", "default-spec-id", "sort-orders"):
            del out[key]
        del out["default-sort-order-id"], out["metadata-log"]
    if table.refs or table.style.get("refs"):
        refs = {name: {"snapshot-id": i, "type": kind} for name, (kind, i) in table.refs.items()}
        if table.current is not None:
            refs["main"] = {"snapshot-id": table.current, "type": "branch"}
        out["refs"] = refs
    return out


def _all(fields: tuple[Field, ...]) -> list[Field]:
    return [g for f in fields for g in (f, *_all(children(f.type)))]


def _snapshot(table: Table, s: Snapshot) -> dict[str, Any]:
    out: dict[str, Any] = {
        "snapshot-id": s.id, "timestamp-ms": s.time, "manifest-list": f"{table.uri}/{s.list_path}",
        "summary": {"operation": s.operation, **(totals(s) if table.style.get("totals") else {})},
    }  # fmt: skip
    if table.version == 1 and not table.style.get("totals"):
        del out["summary"]
    if not table.style.get("no schema ids"):
        out["schema-id"] = s.schema.id
    if s.parent is not None:
        out["parent-snapshot-id"] = s.parent
    if table.version > 1:
        out["sequence-number"] = s.sequence
    if table.version == 3 and s.first_row is not None:
        out["first-row-id"], out["added-rows"] = s.first_row, s.added_rows
    return out


def totals(s: Snapshot) -> dict[str, str]:
    """The totals of a snapshot's summary, as Java's SnapshotSummary counts them."""
    live = [e.file for m in s.manifests for e in m.entries if e.status != "deleted"]
    data = [f for f in live if f.content == "data"]
    positions = [f for f in live if f.content in ("positions", "vector")]
    equality = [f for f in live if f.content == "equality"]
    return {
        "total-records": str(sum(len(f.rows) for f in data)),
        "total-data-files": str(len(data)),
        "total-delete-files": str(len(positions) + len(equality)),
        "total-position-deletes": str(sum(len(f.positions) for f in positions)),
        "total-equality-deletes": str(sum(len(f.rows) for f in equality)),
        "total-files-size": str(sum(f.length if f.content == "vector" else f.size for f in live)),
    }


def _mapping(table: Table, schemas: list[tuple[Field, ...]]) -> list[dict[str, Any]]:
    """A name mapping of all names that fields ever had, of dropped fields too, as Java keeps it."""
    alike: dict[int, list[Field]] = defaultdict(list)
    for fields in schemas:
        for f in fields:
            alike[f.id].append(f)
    out = []
    for identifier, versions in alike.items():
        entry: dict[str, Any] = {"field-id": identifier, "names": table.names.get(identifier, [versions[0].name])}
        if kids := [children(f.type) for f in versions if children(f.type)]:
            entry["fields"] = _mapping(table, kids)
        out.append(entry)
    return out
