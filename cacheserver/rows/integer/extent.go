// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package integer

import (
	"math"
	"math/bits"
	"unsafe"

	"golang.org/x/sys/cpu"
)

// Extent is the least and the greatest of some integers. Unsigned integers are compared as signed ones with the same bits; what counts is the
// difference, modulo 2^64. NewExtent makes one; it is not safe for concurrent use.
type Extent struct {
	least, most int64
	exact       bool
}

// NewExtent is the extent of no values. If it is exact, differences may take any number of bytes; else 1, 2, 4 or 8.
func NewExtent(exact bool) Extent {
	return Extent{least: math.MaxInt64, most: math.MinInt64, exact: exact}
}

// extentBlock is the number of values between two checks of Add whether it can stop.
const extentBlock = 8192

// Add adds n values of width bytes, 4 or 8, at src. It returns false, and stops, when they need all of their bytes.
func (e *Extent) Add(src unsafe.Pointer, n, width int) bool {
	for at := 0; at < n; at += extentBlock {
		from, k := unsafe.Add(src, at*width), min(n-at, extentBlock)
		var least, most int64
		if width == 4 {
			a, b := extentOf(unsafe.Slice((*int32)(from), k))
			least, most = int64(a), int64(b)
		} else {
			least, most = extentOf(unsafe.Slice((*int64)(from), k))
		}
		e.least, e.most = min(e.least, least), max(e.most, most)
		if !e.Shorter(width) {
			return false
		}
	}
	return true
}

// AddSome adds those of at most 64 values whose bits are set in a word; at least one is.
func (e *Extent) AddSome(src unsafe.Pointer, n, width int, set uint64) {
	var least, most int64
	if width == 4 {
		a, b := extentOfSome(unsafe.Slice((*int32)(src), n), set)
		least, most = int64(a), int64(b)
	} else {
		least, most = extentOfSome(unsafe.Slice((*int64)(src), n), set)
	}
	e.least, e.most = min(e.least, least), max(e.most, most)
}

// Shorter reports whether the differences of the values from the least one take fewer than width bytes.
func (e *Extent) Shorter(width int) bool {
	return e.least > e.most || e.bytes(uint64(e.most)-uint64(e.least)) < width
}

// Fit returns the base from which the differences of the values are shortest, and their width. The base is 0 if that costs no bytes, so that
// most nulls are zeros already. The values themselves take signed bytes as signed integers and unsigned ones as unsigned integers, each 1, 2, 4
// or 8; unsigned is 8 if a value is negative.
func (e *Extent) Fit() (base int64, width, signed, unsigned int) {
	if e.least > e.most {
		return 0, 1, 1, 1
	}
	base, width = e.least, e.bytes(uint64(e.most)-uint64(e.least))
	signed = power(max(bits.Len64(uint64(e.least^e.least>>63)), bits.Len64(uint64(e.most^e.most>>63))) + 1)
	unsigned = power(bits.Len64(uint64(e.most | e.least>>63)))
	if e.least >= 0 && e.bytes(uint64(e.most)) == width {
		base = 0
	}
	return base, width, signed, unsigned
}

// extentOfSome is extentOf of the values whose bits are set in a word; at least one is. It does not branch for each value.
func extentOfSome[T int32 | int64](values []T, set uint64) (least, most T) {
	some := values[bits.TrailingZeros64(set)]
	least, most = some, some
	for _, v := range values {
		mask := -T(set & 1)
		v = v&mask | some&^mask
		least, most = min(least, v), max(most, v)
		set >>= 1
	}
	return least, most
}

// extentOf returns the least and the greatest of at least one value.
func extentOf[T int32 | int64](values []T) (least, most T) {
	least, most = values[0], values[0]
	if lanes := vectorBytes / int(unsafe.Sizeof(least)); cpu.X86.HasAVX2 && len(values) >= lanes {
		var out [vectorBytes]byte
		whole := len(values) &^ (lanes - 1)
		if lanes == vectorBytes/4 {
			extent32(&out, unsafe.Pointer(&values[0]), whole)
		} else {
			extent64(&out, unsafe.Pointer(&values[0]), whole)
		}
		both := unsafe.Slice((*T)(unsafe.Pointer(&out)), lanes)
		least, most = both[0], both[lanes/2]
		for i := range lanes / 2 {
			least, most = min(least, both[i]), max(most, both[lanes/2+i])
		}
		values = values[whole:]
	}
	for _, v := range values {
		least, most = min(least, v), max(most, v)
	}
	return least, most
}

// bytes is the number of bytes, at least 1, that a number takes.
func (e *Extent) bytes(x uint64) int {
	n := bits.Len64(x)
	if !e.exact {
		return power(n)
	}
	return max(1, (n+7)/8)
}

// power is the least of 1, 2, 4 and 8 bytes that hold a number of bits.
func power(n int) int {
	return 1 << bits.Len(uint(max(1, (n+7)/8)-1))
}
