# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Benchmark mlperf: how many emulated accelerators of MLPerf Storage's workloads a core feeds, by DLIO's own loop."""
