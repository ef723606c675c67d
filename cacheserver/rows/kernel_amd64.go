// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package rows

import "unsafe"

// prefetch asks for the cache lines of pieces of slots of width bytes and waits for none of them; of a piece longer than
// 4 KiB for the first ones, as the processor finds the others by itself.
//
//go:noescape
func prefetch(ps []piece, src []unsafe.Pointer, width int)

// transpose64 copies n rows, a multiple of four and not none, of four values of 64 bits to four columns. A row lies
// stride bytes after the one before. It needs AVX2.
//
//go:noescape
func transpose64(dst *[4]unsafe.Pointer, from unsafe.Pointer, stride, n int)

// transpose32 is transpose64 for values of 32 bits and a multiple of eight rows.
//
//go:noescape
func transpose32(dst *[4]unsafe.Pointer, from unsafe.Pointer, stride, n int)

// transposeLines copies n rows, a multiple of four and not none, of eight values of 64 bits to eight columns. A row lies
// 64 bytes after the one before. It needs AVX2.
//
//go:noescape
func transposeLines(dst *[8]unsafe.Pointer, from unsafe.Pointer, n int)
