// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package fluid tests caches of files on a real API server with the stock dataset and thin controllers of Fluid, as 'make fluid-tools' builds
// them, which run as processes with the rights of their own service accounts. There is no kubelet and no CSI plugin: a claim is made and bound,
// and nothing mounts it.
package fluid
