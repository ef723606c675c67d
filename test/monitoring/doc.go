// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package monitoring tests the alerts of manifests/components/monitoring: with promtool, and against the metrics of running servers.
package monitoring
