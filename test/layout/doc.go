// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package layout holds the tests that keep the repository's shape: package sentences, file headers, import bans, sizes.
package layout
