// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package integer

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

const (
	vectorBytes = 64 // extents are returned in two vectors of 32 bytes
	vectorSlots = 16 // the kernels convert multiples of so many values
)

// kernel adds a number to each of n values and converts them. n is a multiple of vectorSlots, at least one.
type kernel func(dst, src unsafe.Pointer, n int, add int64)

// Widen writes values of width bytes to dst. At src are their differences from base, in stored bytes each.
func Widen(dst []byte, src unsafe.Pointer, width, stored int, base int64) {
	if stored == width && base == 0 {
		copy(dst, unsafe.Slice((*byte)(src), len(dst)))
		return
	}
	switch 10*stored + width {
	case 11:
		convert[uint8, uint8](dst, src, base, nil)
	case 12:
		convert[uint16, uint8](dst, src, base, widen8to16)
	case 22:
		convert[uint16, uint16](dst, src, base, nil)
	case 14:
		convert[int32, uint8](dst, src, base, widen8to32)
	case 24:
		convert[int32, uint16](dst, src, base, widen16to32)
	case 44:
		convert[int32, int32](dst, src, base, nil)
	case 18:
		convert[int64, uint8](dst, src, base, widen8to64)
	case 28:
		convert[int64, uint16](dst, src, base, widen16to64)
	default:
		convert[int64, uint32](dst, src, base, widen32to64)
	}
}

// Narrow writes the differences of values of width bytes from base to dst, in stored bytes each.
func Narrow(dst []byte, src unsafe.Pointer, width, stored int, base int64) {
	switch {
	case stored == width:
		copy(dst, unsafe.Slice((*byte)(src), len(dst)))
	case width == 4 && stored == 1:
		convert[uint8, int32](dst, src, -base, narrow32to8)
	case width == 4:
		convert[uint16, int32](dst, src, -base, narrow32to16)
	case stored == 1:
		convert[uint8, int64](dst, src, -base, nil)
	case stored == 2:
		convert[uint16, int64](dst, src, -base, narrow64to16)
	default:
		convert[uint32, int64](dst, src, -base, narrow64to32)
	}
}

// number is a type of values or of differences.
type number interface {
	~uint8 | ~uint16 | ~uint32 | ~int32 | ~int64
}

// convert adds a number to values of type F and writes them to dst as type T; higher bits are dropped.
func convert[T, F number](dst []byte, src unsafe.Pointer, add int64, vectors kernel) {
	size, from := int(unsafe.Sizeof(T(0))), int(unsafe.Sizeof(F(0)))
	n := len(dst) / size
	if vectors != nil && cpu.X86.HasAVX2 && n >= vectorSlots {
		vectors(unsafe.Pointer(unsafe.SliceData(dst)), src, n&^(vectorSlots-1), add)
		if n%vectorSlots > 0 { // the last vectorSlots values, some of them for the second time
			at := n - vectorSlots
			vectors(unsafe.Pointer(unsafe.SliceData(dst[at*size:])), unsafe.Add(src, at*from), vectorSlots, add)
		}
		return
	}
	values := unsafe.Slice((*F)(src), n)
	for i, out := 0, unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(dst))), n); i < len(values); i++ {
		out[i] = T(int64(values[i]) + add)
	}
}
