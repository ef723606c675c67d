// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package install tests what an admin does with datacache as a whole: install it, roll it out anew, upgrade it, and remove it. The
// manager's real program runs with the rights that the manifests give it, on a real API server with stock JobSet, LWS and Trainer.
package install
