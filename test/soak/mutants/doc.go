// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package mutants contains deliberate bugs, and a test that the schedules of package soak detect them.
package mutants
