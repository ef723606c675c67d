# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""What all Python tests, demos and benchmarks share: time limits of waits, and ports."""
