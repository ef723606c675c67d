# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""One module per loader, with the interface case.Loader."""
