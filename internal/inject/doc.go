// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package inject says, without a cluster, what a TrainJob asks of a cache and what it and its runtime need added to get one.
//
// A TrainJob goes through it in this order. Matches: is its dataset initializer ours? Mutate: point it at a runtime whose step
// dataset-initializer is our gate, and add what no runtime can know. Validate: refuse what can't work, naming field, value and
// mend. Parse: which cache it asks for. Beside that, Twin makes from a runtime one whose step is our gate.
//
// All functions are pure: they read no clock, no environment and no cluster, and are safe for concurrent use as long as nobody writes
// to their arguments meanwhile.
package inject
