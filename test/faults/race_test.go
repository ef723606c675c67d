// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build race

package faults

// raceEnabled says whether the tests and the server run with the race detector.
const raceEnabled = true
