// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package objectcache holds the tests of real object-cache processes: real clients, kills, disks that are full or fail.
package objectcache
