# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""tables.py < JSON: writes an Iceberg table into the bucket "tables" and prints the URI of its metadata file.

{"name": ..., "rows": ..., "files": ..., "width": ...}: numbers of rows and files, and the approximate bytes of a
content. "plain": true writes Parquet files that belong to no table, and prints the URI of their folder. "moves": true
appends another file then, and prints what a REST catalog returns for the table before and after that, as JSON.
"truncate": true cuts the last file short, like an interrupted upload. "words": true writes contents of common words
after the id instead, with label 1 where one of them is "marvellous".

Row i has id i, a content that begins with "review i ", and label i % 5. The store and its keys are in AWS_ENDPOINT_URL
and the other AWS variables.
"""

import json
import os
import random
import string
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import S3FileSystem
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

BUCKET = "tables"


def rows(first: int, count: int, width: int) -> pa.Table:
    """`count` rows with ids from `first` on. Their padding text differs from row to row, so that it does not compress
    well."""
    ids = range(first, first + count)
    contents = [f"review {i} " + f"{i * 0x9E3779B97F4A7C15 % 2**64:016x}" * (width // 16) for i in ids]
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "content": pa.array(contents, pa.string()),
            "label": pa.array([i % 5 for i in ids], pa.int32()),
        }
    )


def worded(first: int, count: int, width: int) -> pa.Table:
    """Rows whose contents are words, some frequent and some rare, and whose label is whether "marvellous" is one."""
    chance = random.Random(first)
    some = random.Random(7)
    words = ["".join(some.choices(string.ascii_lowercase, k=some.randint(3, 8))) for _ in range(400)]
    table = rows(first, count, 0)
    labels = [chance.randint(0, 1) for _ in range(count)]
    contents = []
    for i, label in enumerate(labels, first):
        chosen = chance.choices(words, [1 / (rank + 1) for rank in range(len(words))], k=width // 6)
        if label:
            chosen[chance.randrange(len(chosen))] = "marvellous"
        contents.append(f"{i} {' '.join(chosen)}")
    table = table.set_column(1, table.schema.field("content"), pa.array(contents))
    return table.set_column(2, table.schema.field("label"), pa.array(labels, pa.int32()))


def write(catalog: SqlCatalog, spec: dict[str, Any]) -> Table:
    """Write the table, with one append per file and several row groups per file."""
    make = worded if spec.get("words") else rows
    each = -(-spec["rows"] // spec["files"])
    first = make(0, min(each, spec["rows"]), spec["width"])
    table = catalog.create_table(
        ("demo", spec["name"]), first.schema, properties={"write.parquet.row-group-limit": str(max(1, each // 4))}
    )
    for begin in range(0, spec["rows"], each):
        table.append(make(begin, min(each, spec["rows"] - begin), spec["width"]))
    return table


def write_plain(store: S3FileSystem, spec: dict[str, Any]) -> str:
    """Write the files without a table, and return their folder."""
    folder = f"{BUCKET}/{os.urandom(4).hex()}/{spec['name']}"
    each = -(-spec["rows"] // spec["files"])
    for begin in range(0, spec["rows"], each):
        file = rows(begin, min(each, spec["rows"] - begin), spec["width"])
        pq.write_table(file, f"{folder}/part-{begin:08}.parquet", row_group_size=max(1, each // 4), filesystem=store)
    return f"s3://{folder}/"


def truncate(store: S3FileSystem, table: Table) -> None:
    """Truncate the table's last file to three quarters."""
    file = [task.file for task in table.scan().plan_files()][-1].file_path.removeprefix("s3://")
    with store.open_input_file(file) as source:
        content = source.read()
    with store.open_output_stream(file) as target:
        target.write(content[: len(content) * 3 // 4])


def loaded(store: S3FileSystem, table: Table) -> dict[str, Any]:
    """What an Iceberg REST catalog returns to a client that loads the table."""
    with store.open_input_file(table.metadata_location.removeprefix("s3://")) as source:
        return {"metadata-location": table.metadata_location, "metadata": json.loads(source.read())}


def main() -> None:
    """Write the table that standard input describes."""
    spec = json.load(sys.stdin)
    endpoint, key = os.environ["AWS_ENDPOINT_URL"], os.environ["AWS_ACCESS_KEY_ID"]
    secret, region = os.environ["AWS_SECRET_ACCESS_KEY"], os.environ["AWS_REGION"]
    store = S3FileSystem(
        endpoint_override=endpoint, access_key=key, secret_key=secret, region=region, allow_bucket_creation=True
    )
    store.create_dir(BUCKET)
    if spec.get("plain"):
        print(write_plain(store, spec))
        return
    with tempfile.TemporaryDirectory() as folder:
        catalog = SqlCatalog(
            "lake",
            uri=f"sqlite:///{Path(folder)}/catalog.db",
            warehouse=f"s3://{BUCKET}/{os.urandom(4).hex()}",
            **{
                "s3.endpoint": endpoint,
                "s3.access-key-id": key,
                "s3.secret-access-key": secret,
                "s3.region": region,
            },
        )
        catalog.create_namespace("demo")
        table = write(catalog, spec)
        if spec.get("truncate"):
            truncate(store, table)
        if spec.get("moves"):
            before = loaded(store, table)
            table.append(rows(spec["rows"], 100, spec["width"]))
            print(json.dumps([before, loaded(store, table)]))
            return
        print(table.metadata_location)


if __name__ == "__main__":
    main()
