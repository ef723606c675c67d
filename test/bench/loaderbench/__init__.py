# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The parts of `make bench-loader`: tables, one module a loader, measurements in fresh processes, report."""
