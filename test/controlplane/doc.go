// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package controlplane holds the tests of webhook and controllers on a real API server, with the stock Trainer, JobSet and
// LeaderWorkerSet managers beside them. Only kubelets are played (test/kit/kubetest); heads are real ones, run by the tests.
package controlplane
