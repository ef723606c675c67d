# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Commits datasets that were put to Iceberg tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from kubeflow_datacache.arguments import check_cache, check_choice, check_text
from kubeflow_datacache.puts import Published

if TYPE_CHECKING:
    from kubeflow_datacache.cache import DataCache

CommitMode = Literal["append", "replace"]


@dataclass(frozen=True, kw_only=True)
class Committed:
    """A dataset that is in a table. snapshot: the table's snapshot with it. existed: an earlier commit made it."""

    dataset: str
    table: str
    snapshot: int
    existed: bool = False


def commit(cache: DataCache, dataset: str | Published, table: str, *, mode: CommitMode = "append") -> Committed:
    """Commits a dataset to a table of the cache's Iceberg catalog, as one snapshot, and waits for it.

    The data nodes write the rows as Parquet files in the table's folder. Readers of the dataset need not wait.

    dataset: what `put` returned, NAME@FINGERPRINT, or a name. table: namespace and name, as "db.events"; it is created
    if there is none. mode: "append" adds the rows, "replace" puts them in place of the table's.

    May be called again, also after an error or a crash: equal rows are appended to a table once.

    Raises RefusedError with the server's reason, which names column and types that the table can't have, and
    UnreachableError if servers don't answer for the cache's retry_seconds.
    """
    check_cache(cache)
    reference = dataset.reference if isinstance(dataset, Published) else check_text("dataset", dataset)
    check_text("table", table)
    check_choice("mode", mode, "append", "replace")
    while True:
        made = cache.act("put.commit", dataset=reference, table=table, mode=mode)
        if made["state"] == "committed":
            existed = made.get("existed", False)
            return Committed(dataset=made["dataset"], table=made["table"], snapshot=made["snapshot"], existed=existed)
