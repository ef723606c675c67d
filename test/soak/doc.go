// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package soak holds tests that run whole caches (a head, its data nodes, an object store and their clients) in one
// process, on a fake clock and over connections in memory, through schedules of faults drawn from a seed.
package soak
