# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The demo of `make demo`: an Iceberg table, one head, two data nodes, and a small model that trains through the
loader, is killed in mid-epoch, and goes on with one rank more.

Read train.py and checkpoint.py as an example of a training script; __main__.py is the director, and the other files are
the stage: table.py, cluster.py, model.py, progress.py.
"""
