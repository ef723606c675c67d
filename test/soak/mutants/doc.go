// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package mutants holds deliberate bugs, and the test that package soak's schedules find them.
package mutants
