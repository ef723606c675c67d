// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package integer

import "unsafe"

// Each of these is a kernel. They need AVX2.

//go:noescape
func widen8to16(dst, src unsafe.Pointer, n int, add int64)

//go:noescape
func widen8to32(dst, src unsafe.Pointer, n int, add int64)

//go:noescape
func widen16to32(dst, src unsafe.Pointer, n int, add int64)

//go:noescape
func widen8to64(dst, src unsafe.Pointer, n int, add int64)

//go:noescape
func widen16to64(dst, src unsafe.Pointer, n int, add int64)

//go:noescape
func widen32to64(dst, src unsafe.Pointer, n int, add int64)

//go:noescape
func narrow32to8(dst, src unsafe.Pointer, n int, add int64)

//go:noescape
func narrow32to16(dst, src unsafe.Pointer, n int, add int64)

//go:noescape
func narrow64to16(dst, src unsafe.Pointer, n int, add int64)

//go:noescape
func narrow64to32(dst, src unsafe.Pointer, n int, add int64)

// extent32 writes the least of n values of 32 bits in each lane of a vector, and then the greatest. n is a multiple of 16 and not 0.
//
//go:noescape
func extent32(out *[vectorBytes]byte, src unsafe.Pointer, n int)

// extent64 is extent32 for values of 64 bits and a multiple of 8.
//
//go:noescape
func extent64(out *[vectorBytes]byte, src unsafe.Pointer, n int)
