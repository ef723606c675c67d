# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The identity of the rows that a cache serves, which positions and checkpoints depend on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """One snapshot's rows as the head numbers them.

    fingerprint names what fixes the row indices: table, snapshot, filter, files. Two caches with the same fingerprint
    hold the same row at every index, whatever their columns and number of data nodes. snapshot is None for a table
    without one. filter is the condition that rows had to meet, as the cache was given it; "" for all rows.
    """

    table_uuid: str
    snapshot: int | str | None
    fingerprint: str
    rows: int
    filter: str = ""
