# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows in memory: Arrow record batches, and numpy arrays and torch tensors that share their memory."""
