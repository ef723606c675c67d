# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The demo of `make demo`: an Iceberg table, a head, two data nodes, and a small model that trains through the loader.
The training is killed in the middle of an epoch and then resumed with one rank more.

train.py and checkpoint.py are an example of a training script. __main__.py runs the demo with table.py, cluster.py,
model.py and progress.py.
"""
