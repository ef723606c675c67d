# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows in memory: Arrow's record batches, numpy's arrays and torch's tensors over them."""
