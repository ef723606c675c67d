// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !race

package scratch

// raceEnabled says whether the tests and the manager run with the race detector.
const raceEnabled = false
