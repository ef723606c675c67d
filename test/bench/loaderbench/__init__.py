# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The parts of `make bench-loader`: tables, one module per loader, measurements in new processes, report."""
