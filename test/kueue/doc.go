// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kueue tests the manager with a real Kueue on a real API server: TrainJobs with a cache that
// Kueue evicts and admits again, or admits when their cache is loaded.
package kueue
