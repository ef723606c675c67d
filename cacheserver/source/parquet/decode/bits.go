// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"encoding/binary"
	"unsafe"
)

// widest is the largest width of a packed value that a load of 64 bits always contains, at whichever bit of a byte it starts.
const widest = 64 - 7

// loads returns how many of n values of width bits, read from src at bit offset at, can be read by a 64-bit load within src. tail holds
// the remaining bytes, fewer than 8, padded with zeros for the loads of the other values.
func loads(src []byte, at, n int, width uint) (fast int, tail [16]byte) {
	if last := (len(src) - 8) * 8; last >= at&^7 { // the last byte where a load can start
		fast = n
		if width > 0 {
			fast = min(n, (last+7-at)/int(width)+1)
		}
	}
	if fast < n {
		copy(tail[:], src[min((at+fast*int(width))>>3, len(src)):])
	}
	return fast, tail
}

// unpack decodes len(dst) values of width bits, least significant bit first, read from src at bit offset at.
func unpack[T uint8 | uint32 | uint64](dst []T, src []byte, at int, width uint) {
	if width > widest {
		for i := range dst {
			dst[i] = T(bitsAt(src, at+i*int(width), width))
		}
		return
	}
	fast, tail := loads(src, at, len(dst), width)
	unpackLoads(dst[:fast], src, at, width)
	unpackLoads(dst[fast:], tail[:], (at+fast*int(width))&7, width)
}

// unpackLoads is unpack for values that can be read by 64-bit loads.
func unpackLoads[T uint8 | uint32 | uint64](dst []T, src []byte, at int, width uint) {
	from, mask, bit := unsafe.Pointer(unsafe.SliceData(src)), uint64(1)<<width-1, uint(at)
	for i := range dst {
		dst[i] = T(*(*uint64)(unsafe.Add(from, bit>>3)) >> (bit & 7) & mask)
		bit += width
	}
}

// lookup decodes indices of at most 32 bits like unpack and sets dst to their entries in dict. It reports whether all indices are
// valid.
func lookup[T any](dst, dict []T, src []byte, at int, width uint) bool {
	fast, tail := loads(src, at, len(dst), width)
	return lookupLoads(dst[:fast], dict, src, at, width) && lookupLoads(dst[fast:], dict, tail[:], (at+fast*int(width))&7, width)
}

// lookupLoads is lookup for indices that can be read by 64-bit loads.
func lookupLoads[T any](dst, dict []T, src []byte, at int, width uint) bool {
	from, mask, bit := unsafe.Pointer(unsafe.SliceData(src)), uint64(1)<<width-1, uint(at)
	for i := range dst {
		id := *(*uint64)(unsafe.Add(from, bit>>3)) >> (bit & 7) & mask
		if id >= uint64(len(dict)) {
			return false
		}
		dst[i] = dict[id]
		bit += width
	}
	return true
}

// bitsAt returns a value of at most 64 bits, read from src at bit offset at; bits past the end of src are zero.
func bitsAt(src []byte, at int, width uint) uint64 {
	var window [16]byte
	copy(window[:], src[min(at>>3, len(src)):])
	shift := uint(at & 7)
	v := binary.LittleEndian.Uint64(window[:])>>shift | binary.LittleEndian.Uint64(window[8:])<<(64-shift)
	return v & (1<<width - 1) // for width 64 all ones, since 1<<64 is 0
}
