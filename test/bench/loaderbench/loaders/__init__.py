# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""One module a loader; case.Loader says what each has to offer."""
