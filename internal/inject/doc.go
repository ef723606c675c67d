// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package inject determines, without access to a cluster, what must be added to a TrainJob that requests a cache, and to its runtime.
//
// A TrainJob that package request has read is processed in this order. Mutate: point it at a runtime whose step dataset-initializer waits for
// the cache (the gate), and add settings that depend on the TrainJob. Validate: reject what can't work, with an error that names the field,
// its value and the fix. Restore: put back on an update what Mutate added. Apart from that, Twin makes a copy of a runtime whose step is the
// gate.
//
// All functions are pure: they read no clock, no environment and no cluster. They are safe for concurrent use as long as their
// arguments are not modified.
package inject
