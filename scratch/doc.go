// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package scratch gives every replica of a job its own disks: it creates the claims that gated pods wait for and removes the gates.
//
// A single worker, in the manager that leads, processes the pods in the order of their creation and creates their claims one after
// the other, at a rate limit for the whole cluster. A claim is owned by the job at the top of the pod's controllers, so that it
// outlives pods and restarts and is deleted with the job. A pod whose claims all exist does not wait for the pods before it.
//
// internal/claim defines the names of claims and which of them a pod waits for.
package scratch
