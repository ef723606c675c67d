// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package controlplane tests webhook and controllers on a real API server, with the unmodified Trainer, JobSet and LeaderWorkerSet
// managers. Only kubelets are simulated (test/kit/kubetest); heads are real ones, run by the tests.
package controlplane
