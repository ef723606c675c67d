// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package layout tests the structure of the repository: package comments, file headers, import bans, sizes, links between pages.
package layout
