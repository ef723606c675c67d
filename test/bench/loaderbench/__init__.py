# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The parts of `make bench NAME=loader`: tables, one module per loader, measurements in new processes, report."""
