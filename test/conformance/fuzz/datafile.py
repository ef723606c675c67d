# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Writes Parquet files, most of them with pyarrow."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq

from .arrow import arrow_field, to_arrow
from .rawparquet import writable, write_raw
from .table import File


def write_parquet(file: File) -> bytes:
    """A file's bytes; sets where its row groups begin."""
    if file.layout.raw is not None and writable(file.fields):
        return write_raw(file, file.layout.raw)
    form = "file" if file.layout.ids else "bare"
    schema = pa.schema([arrow_field(f, form) for f in file.fields])
    columns = [to_arrow(f.type, [row.get(f.id) for row in file.rows], form) for f in file.fields]
    rows = pa.Table.from_arrays(columns, schema=schema)
    out, first = io.BytesIO(), 0
    with pq.ParquetWriter(out, schema, **file.layout.options) as writer:
        for n in file.layout.groups:
            part = rows.slice(first, n)
            if n == 0:
                writer.write_table(part)
            else:
                writer.write_table(part, row_group_size=n)
            first += n
    content = out.getvalue()
    file.starts = starts(content)
    return content


def starts(content: bytes) -> list[int]:
    """Where the row groups of a file begin, without those that have no bytes."""
    metadata = pq.read_metadata(io.BytesIO(content))
    out = []
    for g in range(metadata.num_row_groups):
        group = metadata.row_group(g)
        if group.num_columns and group.num_rows:
            column = group.column(0)
            first = [column.data_page_offset, *([column.dictionary_page_offset] if column.has_dictionary_page else [])]
            out.append(min(first))
    return out
