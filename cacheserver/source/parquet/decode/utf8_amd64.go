// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package decode

import "golang.org/x/sys/cpu"

// validBlocks reports whether n bytes, a positive multiple of blockBytes, are valid UTF-8 up to a character that may be incomplete at
// the end. It needs hasBlocks.
//
//go:noescape
func validBlocks(data *byte, n int) bool

var hasBlocks = cpu.X86.HasAVX2
