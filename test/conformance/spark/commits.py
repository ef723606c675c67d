# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Commits written files to a table with Iceberg's Java API, as Apache Flink's sink does."""

from __future__ import annotations

from typing import Any


def commit(jvm: Any, gateway: Any, table: Any, files: list[dict[str, Any]], checkpoint: int) -> None:
    """Commits the files of one checkpoint, as upserts.py describes them: a RowDelta."""
    iceberg = jvm.org.apache.iceberg
    delta = table.newRowDelta()
    for file in files:
        spec = table.specs().get(file["spec"])
        deletes = file["content"] != "data"
        builder = iceberg.FileMetadata.deleteFileBuilder(spec) if deletes else iceberg.DataFiles.builder(spec)
        config = iceberg.MetricsConfig.forTable(table)
        match file["content"]:
            case "equality":
                ids = gateway.new_array(jvm.int, len(file["equal"]))
                for i, field in enumerate(file["equal"]):
                    ids[i] = field
                builder.ofEqualityDeletes(ids)
            case "position":
                config = iceberg.MetricsConfig.forPositionDelete(table)
                builder.ofPositionDeletes()
                if file["data"]:
                    builder.withReferencedDataFile(file["data"])
        metrics = iceberg.parquet.ParquetUtil.fileMetrics(table.io().newInputFile(file["path"]), config)
        builder.withPath(file["path"]).withFormat("PARQUET").withFileSizeInBytes(file["size"]).withMetrics(metrics)
        if file["partition"]:
            builder.withPartitionPath(file["partition"])
        delta = delta.addDeletes(builder.build()) if deletes else delta.addRows(builder.build())
    delta.set("flink.max-committed-checkpoint-id", str(checkpoint)).commit()
