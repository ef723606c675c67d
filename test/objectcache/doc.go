// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package objectcache tests real object-cache processes: with real clients, kills, and disks that are full or fail.
package objectcache
