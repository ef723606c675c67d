# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The demo of `make demo`: an Iceberg table, one head, two data nodes, and a small model that trains over Flight.

Read it as an example of a client: client.py speaks to the cache, order.py knows which row comes when,
the other files are the stage: table.py, cluster.py, model.py, progress.py.
"""
