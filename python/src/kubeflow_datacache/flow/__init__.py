# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""From the data nodes to the consumer: streams read ahead, merged in the epoch's order, handed on."""
