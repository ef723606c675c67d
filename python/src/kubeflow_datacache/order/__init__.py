# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which row stands at which position of an epoch, and which data node has it."""
