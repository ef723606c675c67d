// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cluster holds the tests of the object cache on a real Kubernetes API server: who may, and who shares the keys.
package cluster
