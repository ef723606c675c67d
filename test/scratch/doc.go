// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package scratch tests the manager of scratch volumes as installed: its program, with the permissions of its own service account, on
// a real API server with the controllers of jobs, claims and quotas, and with stock JobSet, LeaderWorkerSet and Trainer.
package scratch
