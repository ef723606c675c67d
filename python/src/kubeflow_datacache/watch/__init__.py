# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Where the time goes, for those who train."""
