// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package install tests what an admin does with datacache as a whole: install it, roll it out again, upgrade it, and remove it. The
// manager's real program runs with the permissions that the manifests grant it, on a real API server with stock JobSet, LWS and
// Trainer.
package install
