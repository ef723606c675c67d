// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !amd64

package decode

const hasBlocks = false

func validBlocks(*byte, int) bool { panic("decode: no vector instructions") }
