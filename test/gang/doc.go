// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package gang tests TrainJobs with a cache whose pods start together, with real gang schedulers on a real API server.
package gang
