// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !race

package scratch

// raceEnabled says that the tests, and with them the manager, run under the race detector.
const raceEnabled = false
