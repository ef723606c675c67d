# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The parts of `make bench NAME=servers`: tables, processes, clients, measurements, report."""
