# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Ranks of one host that train on the same rows read them once, by a process of their own, over shared memory."""
