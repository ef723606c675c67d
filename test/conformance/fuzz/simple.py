# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tables of one or a few files, for tests of one thing."""

from __future__ import annotations

from .reads import Read
from .run import Case
from .schema import Field, Schema
from .table import Entry, File, Layout, Manifest, Metrics, Row, Snapshot, Spec, Table


def data_file(
    fields: tuple[Field, ...], rows: list[Row], path: str = "data/a.parquet", layout: Layout | None = None
) -> File:
    """A data file of an unpartitioned table."""
    return File(path, "data", Spec(0), (), fields, rows, layout or Layout([len(rows)]), Metrics("full"))


def table_of(schemas: list[tuple[Field, ...]], commits: list[list[File]], version: int = 2) -> Table:
    """A table with the schemas, the last of which is the current one, and a snapshot that adds each list of files."""
    kept = [Schema(i, fields) for i, fields in enumerate(schemas)]
    table = Table(version, kept, [Spec(0)], style={"scheme": "file://"})
    manifests: list[Manifest] = []
    for n, files in enumerate(commits, 1):
        sequence, deletes = 0 if version == 1 else n, files[0].content != "data"
        entries = [Entry("added", f, sequence, sequence, n, inherits=True) for f in files]
        manifests = [*manifests, Manifest(f"metadata/{n}-m0.avro", Spec(0), kept[-1], entries, sequence, n, deletes)]
        time = 1_700_000_000_000 + n
        parent = n - 1 if n > 1 else None
        table.snapshots.append(
            Snapshot(n, parent, sequence, time, kept[-1], manifests, "append", f"metadata/snap-{n}.avro")
        )
        table.current = n
        table.log.append((time, n))
    return table


def whole(table: Table, **options: object) -> Case:
    """A read of all rows of the current snapshot."""
    assert table.current is not None
    read = Read([], 1, table.snapshot(table.current), table.schema)
    for name, value in options.items():
        setattr(read, name, value)
    return Case(0, table, read)
