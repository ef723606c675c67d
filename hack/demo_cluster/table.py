# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The table of the demo: rows with a few features, and a class determined by a hidden rule."""

import os
import tempfile

import numpy as np
import pyarrow as pa
from pyarrow.fs import S3FileSystem
from pyiceberg.catalog.sql import SqlCatalog

FEATURES, CLASSES, FILES = 16, 4, 4
BUCKET = "tables"


def write(rows: int, keys: dict[str, str]) -> str:
    """Write the table to the object store of these keys (AWS_ENDPOINT_URL, ...); return its metadata file's URI."""
    random = np.random.default_rng(2026)
    rule = random.normal(size=(FEATURES, CLASSES))
    endpoint, region = keys["AWS_ENDPOINT_URL"], keys["AWS_REGION"]
    user, secret = keys["AWS_ACCESS_KEY_ID"], keys["AWS_SECRET_ACCESS_KEY"]
    S3FileSystem(
        endpoint_override=endpoint, access_key=user, secret_key=secret, region=region, allow_bucket_creation=True
    ).create_dir(BUCKET)
    with tempfile.TemporaryDirectory() as folder:
        catalog = SqlCatalog(
            "demo",
            uri=f"sqlite:///{folder}/catalog.db",
            warehouse=f"s3://{BUCKET}/{os.urandom(4).hex()}",
            **{
                "s3.endpoint": endpoint,
                "s3.region": region,
                "s3.access-key-id": user,
                "s3.secret-access-key": secret,
            },
        )
        catalog.create_namespace("demo")
        table = None
        for part in range(FILES):
            content = _rows(random, rule, rows * (part + 1) // FILES - rows * part // FILES)
            table = table or catalog.create_table(
                "demo.points", content.schema, properties={"write.parquet.row-group-limit": "32768"}
            )
            table.append(content)
        assert table is not None
        return table.metadata_location


def _rows(random: np.random.Generator, rule: np.ndarray, count: int) -> pa.Table:
    features = random.normal(size=(count, FEATURES)).astype(np.float32)
    columns = {f"f{i:02}": features[:, i] for i in range(FEATURES)}
    return pa.table({**columns, "label": (features @ rule).argmax(axis=1).astype(np.int32)})
