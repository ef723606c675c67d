// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"slices"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/kubeflow/datacache/cacheserver/rows/bitmap"
)

// sourceBuffers has, for one node of the layout, pointers to its buffers in each source of a copier: all slices are indexed by source. A
// pointer is to slot 0, which is row 0 of the source or, for a child, the first slot that belongs to row 0; array offsets are included.
// Their memory belongs to off-heap chunks or to Arrow buffers that a builder retains.
type sourceBuffers struct {
	valid []unsafe.Pointer // validity bitmaps; nil: every slot is valid
	a     []unsafe.Pointer // values, bits or offsets
	b     []unsafe.Pointer // data of kindVar
	bit   []int64          // position of slot 0's bit in valid, and for kindBool in a; empty: 0 in every source

	nullable bool // a source has, or had, a validity bitmap
	narrow   bool // some chunk stores the values, or their strip, in fewer bytes than the layout says
	based    bool // some chunk stores differences from a base
	dirty    bool // some chunk with a base has nulls, which are then not zero after widening
}

// addSlab adds a slab as a source to the buffers of n and its children.
func addSlab(buffers []sourceBuffers, n *node, s *slab) {
	sb := &buffers[n.id]
	var valid, a, b unsafe.Pointer
	switch n.kind {
	case kindNull:
	case kindVar:
		valid, a, b = s.at(n.buf), s.at(n.buf+1), s.at(n.buf+2)
	case kindBool, kindFixed, kindList:
		valid, a = s.at(n.buf), s.at(n.buf+1)
	case kindFixedList, kindStruct:
		valid = s.at(n.buf)
	case kindLength:
		a = s.at(n.buf + 1)
	}
	sb.add(valid, a, b)
	if len(sb.bit) > 0 {
		sb.bit = append(sb.bit, 0)
	}
	for _, kid := range n.kids {
		addSlab(buffers, kid, s)
	}
}

// addArray adds an array as a source to the buffers of n and its children. The array's slot base becomes slot 0; only count slots from
// slot from on will be read. The caller has validated the array.
func addArray(buffers []sourceBuffers, n *node, d arrow.ArrayData, base, from, count int) {
	sb := &buffers[n.id]
	base += d.Offset()
	var valid, a, b unsafe.Pointer
	if hasNulls(n, d, base+from, count) {
		valid = start(d, 0, 0)
	}
	switch n.kind {
	case kindBool:
		a = start(d, 1, 0)
	case kindFixed, kindList:
		a = start(d, 1, base*n.width)
	case kindVar:
		a, b = start(d, 1, base*n.width), start(d, 2, 0)
	}
	sb.add(valid, a, b)
	for len(sb.bit) < len(sb.a)-1 {
		sb.bit = append(sb.bit, 0) // for slabs added earlier
	}
	sb.bit = append(sb.bit, int64(base))
	switch n.kind {
	case kindList:
		lo, hi := offsets(n, d, base+from, count)
		base, from, count = 0, int(lo), int(hi-lo)
	case kindFixedList:
		base, from, count = base*n.width, from*n.width, count*n.width
	}
	for i, kid := range n.kids {
		addArray(buffers, kid, d.Children()[i], base, from, count)
	}
}

func (sb *sourceBuffers) add(valid, a, b unsafe.Pointer) {
	sb.nullable = sb.nullable || valid != nil
	sb.valid = append(sb.valid, valid)
	sb.a = append(sb.a, a)
	sb.b = append(sb.b, b)
}

// drop removes sources [lo, hi); those after them move down.
func (sb *sourceBuffers) drop(lo, hi int) {
	sb.valid = slices.Delete(sb.valid, lo, hi)
	sb.a = slices.Delete(sb.a, lo, hi)
	sb.b = slices.Delete(sb.b, lo, hi)
	if len(sb.bit) > 0 {
		sb.bit = slices.Delete(sb.bit, lo, hi)
	}
}

// bitOf returns the position of slot 0's bit in a source's bitmaps.
func (sb *sourceBuffers) bitOf(src int32) int64 {
	if len(sb.bit) == 0 {
		return 0
	}
	return sb.bit[src]
}

// hasNulls reports whether any of count slots, starting at slot at, is null.
func hasNulls(n *node, d arrow.ArrayData, at, count int) bool {
	if n.kind == kindNull || d.NullN() == 0 || count == 0 {
		return false
	}
	bits := start(d, 0, 0)
	return bits != nil && bitmap.Ones(bits, int64(at), count) < count
}

// offsets returns the range [lo, hi) of child slots, or bytes, of count lists or values from slot at on.
func offsets(n *node, d arrow.ArrayData, at, count int) (lo, hi int64) {
	if count == 0 {
		return 0, 0
	}
	first := start(d, 1, at*n.width)
	last := start(d, 1, (at+count)*n.width)
	if n.width == 4 {
		return int64(*(*int32)(first)), int64(*(*int32)(last))
	}
	return *(*int64)(first), *(*int64)(last)
}

// start returns a pointer to byte at of buffer buf of an array, nil if the buffer ends before it.
func start(d arrow.ArrayData, buf, at int) unsafe.Pointer {
	b := buffer(d, buf)
	if at >= len(b) {
		return nil
	}
	return unsafe.Pointer(&b[at])
}

// buffer returns the bytes of buffer i of an array, nil if there is none.
func buffer(d arrow.ArrayData, i int) []byte {
	if i >= len(d.Buffers()) || d.Buffers()[i] == nil {
		return nil
	}
	return d.Buffers()[i].Bytes()
}
