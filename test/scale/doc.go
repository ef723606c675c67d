// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package scale measures one head with many data nodes and splits, and compares it with a model of what it costs.
//
// The head is a process of its own, whose CPU time and memory are measured. The data nodes are stubs that speak the peer protocol and hold
// no rows. `make scale-model` writes docs/scale.md. Plans of many files are measured beside them (`make scale-files`).
package scale
