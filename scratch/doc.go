// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package scratch gives every replica of a job disks of its own: it makes the claims that gated pods wait for and opens their gates.
//
// One worker, of the manager that leads, takes the pods in the order of their creation and makes their claims one after the other at a
// rate that holds for the whole cluster. A claim belongs to the job at the top of the pod's controllers, so that it outlives pods and
// restarts and goes with the job. A pod whose claims all exist does not wait for the pods before it.
//
// What a claim is called and what a pod waits for, internal/claim says.
package scratch
