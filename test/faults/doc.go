// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package faults holds the tests that kill, stop, starve and mislead real cacheserver processes and demand every row, or a reason.
package faults
