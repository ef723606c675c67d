// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package faults kills, stops, freezes and starves real cacheserver processes and corrupts their input. The tests require that
// clients still get every row, or an error with the reason.
package faults
