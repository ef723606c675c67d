// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"encoding/binary"
	"unsafe"
)

// widest is the widest packed value that one load of 64 bits holds wherever in a byte it starts.
const widest = 64 - 7

// loads is how many of n values of width bits from bit at of src on can be read by a load of 64 bits within src, and
// tail the bytes from where the next starts, fewer than 8, with zeros for loads behind them.
func loads(src []byte, at, n int, width uint) (fast int, tail [16]byte) {
	if last := (len(src) - 8) * 8; last >= at&^7 { // the last byte at which a load may start
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

// unpack reads len(dst) values of width bits, low bits first, from bit at of src on, which has them.
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

// unpackLoads is unpack where src has 8 bytes from every value on, and values are not too wide.
func unpackLoads[T uint8 | uint32 | uint64](dst []T, src []byte, at int, width uint) {
	from, mask, bit := unsafe.Pointer(unsafe.SliceData(src)), uint64(1)<<width-1, uint(at)
	for i := range dst {
		dst[i] = T(*(*uint64)(unsafe.Add(from, bit>>3)) >> (bit & 7) & mask)
		bit += width
	}
}

// lookup reads indices of at most 32 bits as unpack does and sets dst to their entries in dict. It reports whether
// all are in it.
func lookup[T any](dst, dict []T, src []byte, at int, width uint) bool {
	fast, tail := loads(src, at, len(dst), width)
	return lookupLoads(dst[:fast], dict, src, at, width) && lookupLoads(dst[fast:], dict, tail[:], (at+fast*int(width))&7, width)
}

// lookupLoads is lookup where src has 8 bytes from every index on.
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

// bitsAt is a value of at most 64 bits from bit at of src on; bits past the end of src are zero.
func bitsAt(src []byte, at int, width uint) uint64 {
	var window [16]byte
	copy(window[:], src[min(at>>3, len(src)):])
	shift := uint(at & 7)
	v := binary.LittleEndian.Uint64(window[:])>>shift | binary.LittleEndian.Uint64(window[8:])<<(64-shift)
	return v & (1<<width - 1) // all ones at 64: 1<<64 is 0
}
