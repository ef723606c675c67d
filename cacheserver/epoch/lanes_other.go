// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !amd64

package epoch

const hasLanes = false

func forwardLanes(*Permutation, []uint64) { panic("order: there is no forwardLanes here") }
