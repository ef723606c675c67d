# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The dataset initializer that requests a cache for a TrainJob."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from kubeflow.trainer import DataCacheInitializer

from kubeflow_datacache.sdk.derive import Derive
from kubeflow_datacache.sdk.quantity import quantity


@dataclass(init=False)
class ArrowCacheDatasetInitializer(DataCacheInitializer):
    """A table to keep in memory while a TrainJob trains, as in Kubeflow's enhancement proposal 2655.

    The SDK turns every field into an environment variable of spec.initializer.dataset, named like the field in upper
    case (kubeflow 0.5.0 backends/kubernetes/utils.py). datacache's webhook validates these variables and its controller
    reads them, so numbers and sizes are passed as text.

    Args:
        cluster_size: the cache's pods including the head; at least 2. cluster_size - 1 data nodes share the rows.
        metadata_loc: URI of the table's metadata file. This or catalog_uri, unless storage_uri names a DataCache.
        table_name: the table, if storage_uri does not name it.
        schema_name: the table's schema, levels joined by dots, if storage_uri does not name it.
        storage_uri: cache://<schema>/<table>, instead of the two names; cache+<source>?partitions=off, instead of
            source; or datacache://[<namespace>/]<name> for an existing DataCache, with /<dataset> behind namespace and
            name for one of the datasets that were put into it, or several separated by commas, and
            then no other argument but ready_timeout and gate.
        source: a folder, glob or file of Parquet files that belong to no table, such as "s3://bucket/train/", or a data
            set on a Hugging Face hub: "hf://owner/name[@revision][?config=name&split=name]", or a Delta table:
            "delta+s3://bucket/table". Then neither metadata_loc, catalog_uri nor names of a table may be given, and
            snapshot_id only for a Delta table.
        columns: columns to keep, in this order; None keeps all.
        filter: rows to keep, as in SQL's WHERE: "label >= 1 AND lang = 'en'".
        snapshot_id: the table's snapshot, or a Delta table's version; None uses the current one when the cache is
            planned.
        catalog_uri: an Iceberg REST catalog with the table, instead of metadata_loc.
        catalog_warehouse: the warehouse in that catalog.
        derive: a dataset to make of the rows once, such as their tokens, which TrainJobs then read in their place.
        cache_scope: "job", or "namespace" to share one cache among TrainJobs that request the same rows. The default is
            "job", and "namespace" with derive.
        idle_ttl: how long to keep a shared cache after its last user, such as "30m" or "10h".
        ready_timeout: how long the TrainJob waits for its cache, such as "2h".
        gate: "ready" (the default), or "counted" to train when the rows are counted, and read them while they load.
        first_epoch: with gate="counted", what the script's loader will read first, so that these rows are loaded first:
            {"seed": 7, "global_batch": 256}, and other fields of an epoch's command that differ from the defaults.
        head_cpu: CPU of the head, a Kubernetes quantity such as "1".
        head_mem: memory of the head, such as "1Gi".
        worker_cpu: CPU of each data node.
        worker_mem: memory of each data node; the table's decoded bytes / (cluster_size - 1) must fit.
        iam_role: AWS role that the cache's pods run as (IRSA).

    Raises:
        TypeError: a name is missing, or a value has the wrong type.
        ValueError: a value is invalid; the message says what is expected.
    """

    columns: str | None
    filter: str | None
    snapshot_id: str | None
    catalog_uri: str | None
    catalog_warehouse: str | None
    derive: str | None
    cache_scope: str | None
    idle_ttl: str | None
    ready_timeout: str | None
    gate: str | None
    first_epoch: str | None

    def __init__(
        self,
        cluster_size: int | str | None = None,
        metadata_loc: str | None = None,
        table_name: str | None = None,
        schema_name: str | None = None,
        storage_uri: str | None = None,
        *,
        source: str | None = None,
        columns: list[str] | None = None,
        filter: str | None = None,
        snapshot_id: int | str | None = None,
        catalog_uri: str | None = None,
        catalog_warehouse: str | None = None,
        derive: Derive | None = None,
        cache_scope: str | None = None,
        idle_ttl: str | None = None,
        ready_timeout: str | None = None,
        gate: str | None = None,
        first_epoch: Mapping[str, Any] | None = None,
        head_cpu: str | None = None,
        head_mem: str | None = None,
        worker_cpu: str | None = None,
        worker_mem: str | None = None,
        iam_role: str | None = None,
    ) -> None:
        # A JSON list: the SDK would join a list with commas, but column names may contain commas.
        self.columns = json.dumps(columns, ensure_ascii=False) if columns else None
        self.filter = filter
        self.snapshot_id = None if snapshot_id is None else str(snapshot_id)
        self.catalog_uri, self.catalog_warehouse = catalog_uri, catalog_warehouse
        self.derive = None if derive is None else derive.variable()
        self.cache_scope, self.idle_ttl, self.ready_timeout = cache_scope, idle_ttl, ready_timeout
        self.gate, self.first_epoch = gate, json.dumps(first_epoch) if first_epoch else None
        self.head_cpu, self.head_mem = quantity("head_cpu", head_cpu), quantity("head_mem", head_mem)
        self.worker_cpu, self.worker_mem = quantity("worker_cpu", worker_cpu), quantity("worker_mem", worker_mem)
        self.iam_role = iam_role
        self.metadata_loc = metadata_loc or ""  # the SDK always sends it; empty means unset
        if source is not None:
            if storage_uri is not None:
                raise ValueError(f"source {source!r} and storage_uri {storage_uri!r} are given: leave one out")
            storage_uri = f"cache+{source}"
        if storage_uri is not None and storage_uri.startswith("datacache://"):
            self._refer(storage_uri, cluster_size, table_name, schema_name)
            return
        if cluster_size is None:
            raise TypeError(
                "cluster_size is missing: give the number of the cache's pods, the head and at least 1 data node"
            )
        self.num_data_nodes = _pods(cluster_size) - 1
        if storage_uri is not None and storage_uri.startswith("cache+"):
            self._read_files(storage_uri, table_name or schema_name)
            return
        self.storage_uri = _table(storage_uri, schema_name, table_name)
        if bool(metadata_loc) == bool(catalog_uri):
            raise ValueError(
                "exactly one of metadata_loc and catalog_uri must be given: the metadata file or its catalog"
            )

    def __post_init__(self) -> None:
        """Replaces the SDK's check, which accepts only cache:// and at least two data nodes."""

    def _read_files(self, storage_uri: str, table: str | None) -> None:
        """Reads plain files or a Delta table."""
        others = ["metadata_loc", "catalog_uri", "catalog_warehouse"]
        data = "a Delta table"
        if not storage_uri.startswith("cache+delta+"):
            data = "plain files, which belong to no table"
            others.append("snapshot_id")
        given = [name for name in others if getattr(self, name)] + ["table_name and schema_name"] * bool(table)
        if given:
            raise ValueError(f"{storage_uri} names {data}: leave {', '.join(given)} out")
        if not re.fullmatch(r"cache\+(delta\+)?(s3|s3a|s3n|gs|abfs|abfss|wasb|wasbs|file|hf)://\S+", storage_uri):
            raise ValueError(
                f"{storage_uri.removeprefix('cache+')!r} is no address of files: it must be a folder, glob or file such"
                " as s3://bucket/train/, a data set on a hub such as hf://owner/name?split=train, or a Delta table such"
                " as delta+s3://bucket/table"
            )
        self.storage_uri = storage_uri

    def _refer(self, storage_uri: str, *given: object) -> None:
        """Refers to an existing DataCache."""
        others = {name: value for name, value in vars(self).items() if value and name not in ("ready_timeout", "gate")}
        if others or any(given):
            raise ValueError(
                f"{storage_uri} names a DataCache, which says itself what it caches:"
                f" leave {', '.join(others) or 'cluster_size, schema_name and table_name'} out"
            )
        self.num_data_nodes = 0  # the SDK sends CLUSTER_SIZE = num_data_nodes + 1; this TrainJob needs no data nodes
        self.storage_uri = storage_uri


def _pods(cluster_size: int | str) -> int:
    try:
        pods = int(cluster_size)
    except ValueError:
        pods = 0
    if pods < 2 or str(pods) != str(cluster_size):
        raise ValueError(
            f"cluster_size is {cluster_size!r}: it must be an integer of at least 2, the head and at least 1 data node"
        )
    return pods


def _table(storage_uri: str | None, schema: str | None, table: str | None) -> str:
    if storage_uri is None:
        if not schema or not table:
            raise ValueError(
                "no table named: give schema_name and table_name, or storage_uri='cache://<schema>/<table>'"
            )
        return f"cache://{quote(schema, safe='')}/{quote(table, safe='')}"
    if schema or table:
        raise ValueError(f"storage_uri {storage_uri!r} names the table already: leave schema_name and table_name out")
    parts = storage_uri.removeprefix("cache://").partition("?")[0].split("/")
    if not storage_uri.startswith("cache://") or len(parts) != 2 or not all(parts):
        raise ValueError(
            f"storage_uri is {storage_uri!r}: it must be cache://<schema>/<table>, cache+<address of files> or datacache://[<namespace>/]<name>"
        )
    return storage_uri
