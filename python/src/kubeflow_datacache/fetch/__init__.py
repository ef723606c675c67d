# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Fetches rows from the data nodes: reads streams ahead, merges them in the epoch's order, and queues the batches."""
