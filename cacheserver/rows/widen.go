// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package rows

import "unsafe"

const (
	vectorBytes = 64 // extents are returned in two vectors of 32 bytes
	vectorSlots = 16 // the kernels convert multiples of so many values
)

// kernel adds a number to each of n values and converts them. n is a multiple of vectorSlots, at least one.
type kernel func(dst, src unsafe.Pointer, n int, add int64)

// widen writes values of width bytes, of which src has the form f, to dst.
func widen(dst []byte, src unsafe.Pointer, width int, f *form) {
	if int(f.width) == width && f.base == 0 {
		copy(dst, unsafe.Slice((*byte)(src), len(dst)))
		return
	}
	switch 10*int(f.width) + width { // bytes in the chunk, then in the message
	case 11:
		convert[uint8, uint8](dst, src, f.base, nil)
	case 12:
		convert[uint16, uint8](dst, src, f.base, widen8to16)
	case 22:
		convert[uint16, uint16](dst, src, f.base, nil)
	case 14:
		convert[int32, uint8](dst, src, f.base, widen8to32)
	case 24:
		convert[int32, uint16](dst, src, f.base, widen16to32)
	case 44:
		convert[int32, int32](dst, src, f.base, nil)
	case 18:
		convert[int64, uint8](dst, src, f.base, widen8to64)
	case 28:
		convert[int64, uint16](dst, src, f.base, widen16to64)
	default:
		convert[int64, uint32](dst, src, f.base, widen32to64)
	}
}

// narrow writes values of width bytes to dst in the form f.
func narrow(dst []byte, src unsafe.Pointer, width int, f *form) {
	switch {
	case int(f.width) == width:
		copy(dst, unsafe.Slice((*byte)(src), len(dst)))
	case width == 4 && f.width == 1:
		convert[uint8, int32](dst, src, -f.base, narrow32to8)
	case width == 4:
		convert[uint16, int32](dst, src, -f.base, narrow32to16)
	case f.width == 1:
		convert[uint8, int64](dst, src, -f.base, nil)
	case f.width == 2:
		convert[uint16, int64](dst, src, -f.base, narrow64to16)
	default:
		convert[uint32, int64](dst, src, -f.base, narrow64to32)
	}
}

// number is an integer type of chunks or messages.
type number interface {
	~uint8 | ~uint16 | ~uint32 | ~int32 | ~int64
}

// convert adds a number to values of type F and writes them to dst as type T; higher bits are dropped.
func convert[T, F number](dst []byte, src unsafe.Pointer, add int64, vectors kernel) {
	size, from := int(unsafe.Sizeof(T(0))), int(unsafe.Sizeof(F(0)))
	n := len(dst) / size
	if vectors != nil && hasAVX2 && n >= vectorSlots {
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
