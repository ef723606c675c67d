# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The order of rows in an epoch, and which data node holds each row."""
