// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package soak runs whole caches (a head, its data nodes, an object store and their clients) in one process, with a fake clock and
// in-memory connections, through random schedules of faults that a seed determines.
package soak
