// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package inject determines, without access to a cluster, which cache a TrainJob requests, and what must be added to the TrainJob and
// its runtime.
//
// A TrainJob is processed in this order. Matches: is its dataset initializer ours? Mutate: point it at a runtime whose step
// dataset-initializer waits for the cache (the gate), and add settings that depend on the TrainJob. Validate: reject what can't work,
// with an error that names the field, its value and the fix. Parse: which cache it requests. Apart from that, Twin makes a copy of a
// runtime whose step is the gate.
//
// All functions are pure: they read no clock, no environment and no cluster. They are safe for concurrent use as long as their
// arguments are not modified.
package inject
