# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Compares what `cacheserver audit --json` found in a table's data files with what DuckDB or Spark reads from them.

    cacheserver audit TABLE --json | python against.py --against duckdb

Compared are the rows of each file, the nulls of its columns, and the least and the greatest value of columns of
integers. Columns that a file has under another name are left out. It prints what differs and ends with 1 if anything
does.
"""

# pyright: reportMissingImports=false
# Spark is needed for --against spark alone.

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

# A reader returns a file's rows and, for each column, its nulls, least and greatest value; the values are None unless
# it has integers.
Reader = Callable[[str], tuple[int, dict[str, tuple[int, int | None, int | None]]]]


def duckdb_reader() -> Reader:
    """Reads with DuckDB. Files on s3:// need its httpfs extension."""
    import duckdb

    def read(uri: str) -> tuple[int, dict[str, tuple[int, int | None, int | None]]]:
        rows = duckdb.read_parquet(uri.removeprefix("file://"))
        return _aggregate(
            rows.columns, [str(t) for t in rows.types], lambda text: rows.aggregate(text).fetchall()[0], '"'
        )

    return read


def spark_reader() -> Reader:
    """Reads with Spark."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()

    def read(uri: str) -> tuple[int, dict[str, tuple[int, int | None, int | None]]]:
        rows = spark.read.parquet(uri)
        names, types = zip(*rows.dtypes, strict=True)
        rows.createOrReplaceTempView("audited")
        return _aggregate(names, types, lambda text: tuple(spark.sql(f"SELECT {text} FROM audited").first()), "`")

    return read


INTEGERS = ("tinyint", "smallint", "int", "integer", "bigint")


def _aggregate(
    names: Any, types: Any, run: Callable[[str], tuple[Any, ...]], quote: str
) -> tuple[int, dict[str, tuple[int, int | None, int | None]]]:
    parts = ["count(*)"]
    for name, kind in zip(names, types, strict=True):
        column = quote + name.replace(quote, 2 * quote) + quote
        extremes = [f"min({column})", f"max({column})"] if kind.lower() in INTEGERS else ["NULL", "NULL"]
        parts += [f"count({column})", *extremes]
    rows, *values = run(", ".join(parts))
    return rows, {
        name: (rows - values[3 * i], values[3 * i + 1], values[3 * i + 2]) for i, name in enumerate(names)
    }  # fmt: skip


def compare(audit: dict[str, Any], read: Reader) -> list[str]:
    """What differs, a line each."""
    differences = []
    for file in audit["files"]:
        rows, columns = read(file["file"])
        if rows != file["rows"]:
            differences.append(f"{file['file']}: {file['rows']} rows, here {rows}")
        for column in file["columns"]:
            if column["name"] not in columns:
                continue
            nulls, least, greatest = columns[column["name"]]
            found = {"nulls": nulls, "min": least, "max": greatest}
            for what, here in found.items():
                said = column.get(what)
                if here is not None and str(said) != str(here):
                    differences.append(f"{file['file']} column {column['name']}: {what} {said}, here {here}")
    return differences


def main() -> None:
    """Reads the audit from standard input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", choices=["duckdb", "spark"], required=True)
    read = {"duckdb": duckdb_reader, "spark": spark_reader}[parser.parse_args().against]()
    audit = json.load(sys.stdin)
    differences = compare(audit, read)
    print("\n".join(differences) or f"nothing differs in {len(audit['files'])} files")
    sys.exit(bool(differences))


if __name__ == "__main__":
    main()
