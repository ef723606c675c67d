// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build race

package plugin

// raceEnabled says whether the tests and trainer-manager run with the race detector.
const raceEnabled = true
