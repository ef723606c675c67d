# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Random Iceberg tables, written without an Iceberg library, and a model that knows their rows.

`SEED=7 python -m fuzz --tables 1000` (make fuzz-tables) writes a table per seed, has a cache serve it, and compares
the rows with the model's:

- generate.py draws a table from a seed: schemas, partition specs, files, deletes, snapshots, as plain data (table.py).
- write.py, manifests.py, datafile.py, rawparquet.py, deletes.py write it: JSON, Avro, Parquet, Puffin.
- oracle.py applies the rules of the Iceberg specification to the same plain data, conditions.py those of SQL.
- corrupt.py damages a written table, and knows what a cache may then serve.
- run.py starts caches and compares.
"""
