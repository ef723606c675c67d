# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Benchmark elastic: which rows loaders lose and repeat when a training on filtered or mixed rows is resumed."""
