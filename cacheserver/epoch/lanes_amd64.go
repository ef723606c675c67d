// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package epoch

import "golang.org/x/sys/cpu"

// forwardLanes replaces every x of xs by forward(x). There are a multiple of 16 of them, and not none. It needs hasLanes.
//
//go:noescape
func forwardLanes(p *Permutation, xs []uint64)

var hasLanes = cpu.X86.HasAVX2
