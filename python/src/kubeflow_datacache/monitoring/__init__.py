# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Statistics and progress of loaders."""
