# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Division among data nodes: a large row group is split, so that two nodes hold half of its rows each."""

from __future__ import annotations

import io
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from client import Client
from lake import Lake
from server import Cache

Connect = Callable[[Cache], Client]

COUNT = 1_000_000


def _rows() -> pa.Table:
    """Columns of plain values, dictionary-encoded strings, lists and a struct, with nulls."""
    ids = pa.array(range(COUNT), pa.int64())
    masked = pa.array([None if i & 15 == 3 else f"text {i & 1023}" for i in range(COUNT)])
    offsets = pa.array(range(0, 2 * COUNT + 1, 2), pa.int32())
    tokens = pa.ListArray.from_arrays(offsets, pa.array([i & 0xFFFF for i in range(2 * COUNT)], pa.int32()))
    both = pa.StructArray.from_arrays([ids, masked], names=["a", "b"])
    return pa.table({"id": ids, "text": masked, "tokens": tokens, "both": both})


@pytest.mark.parametrize("index", [True, False], ids=["page index", "no page index"])
def test_two_nodes_share_one_row_group(
    index: bool, lake: Lake, private: Callable[..., Cache], connect: Connect
) -> None:
    rows, out = _rows(), io.BytesIO()
    pq.write_table(rows, out, row_group_size=COUNT, write_page_index=index)
    assert pq.ParquetFile(io.BytesIO(out.getvalue())).num_row_groups == 1
    name = f"one_row_group_{index}"
    uri = lake.write(f"{name}.parquet", out.getvalue())
    table = lake.create(name, rows.schema)
    table.add_files([uri])
    made = lake.pin(name, table)

    one = private(["--metadata", made.metadata], nodes=1)
    two = private(["--metadata", made.metadata], nodes=2)
    one.wait("Ready")
    shares = [node["rows"] for node in two.wait("Ready")["nodes"]]
    assert sum(shares) == COUNT
    assert all(abs(share - COUNT / 2) <= COUNT / 200 for share in shares), shares
    got = connect(two).table()
    assert got.equals(connect(one).table()), "the rows are in another order than on one node"
    assert got.equals(rows.cast(got.schema))
    lengths = connect(two).table(["length(tokens)", "id", "length(text)"])
    assert lengths.schema.types == [pa.int32(), pa.int64(), pa.int32()]
    assert lengths["length(tokens)"].equals(pc.call_function("list_value_length", [rows["tokens"]]))
    assert lengths["length(text)"].equals(pc.fill_null(pc.call_function("binary_length", [rows["text"]]), 0))
    with pytest.raises(
        pa.ArrowInvalid, match=r"length\(both\).*column .both. is struct.*want a list, a string or binary"
    ):
        connect(two).table(["length(both)"])
