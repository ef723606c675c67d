// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cluster tests the object cache with a real Kubernetes API server: authorization and membership.
package cluster
