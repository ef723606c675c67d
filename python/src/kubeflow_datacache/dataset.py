# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Identity of the rows that a cache serves. Saved positions are valid only for the same dataset."""

from __future__ import annotations

from dataclasses import dataclass

from kubeflow_datacache.order.split import Split


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """The rows of one snapshot, or a selection of them, numbered by the head.

    fingerprint identifies everything that determines the row indices: table, snapshot, filters, split and files. Two
    caches with the same fingerprint have the same row at every index, even if their columns or numbers of data nodes
    differ. snapshot is None for a table that has none. filter is the cache's filter expression; "" if it keeps all
    rows. row_filter is that of the selection, as the head spells it, and split its split.
    """

    table_uuid: str
    snapshot: int | str | None
    fingerprint: str
    rows: int
    filter: str = ""
    row_filter: str = ""
    split: Split | None = None
