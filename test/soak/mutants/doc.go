// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package mutants contains deliberate bugs, and tests that they are detected: by the schedules of package soak, or by the test of a check of what comes from outside.
package mutants
