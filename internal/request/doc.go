// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package request parses, without access to a cluster, which cache a TrainJob requests.
//
// Read reads the TrainJob once, into a Job. The later steps use that value: Wants says whether there is a request at all, Parse adds what
// the runtime's step says and returns the Request or every reason why it is invalid, and the Check functions compare it with the DataCaches
// that exist.
//
// All functions are pure: they read no clock, no environment and no cluster. They are safe for concurrent use as long as their
// arguments are not modified.
package request
