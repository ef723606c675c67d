// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/kubeflow/datacache/cacheserver/rows/bitmap"
)

// The values in null slots are undefined: a decoder may leave a string in a null slot, or valid fields in a null struct. A slab has
// them in a normalized form, so that equal rows have equal bytes: the children of a null slot are null, a null slot of a
// variable-length type is empty, and fixed-width values are zero.
//
// Most decoders' arrays are almost in this form. Where dirty finds other values, the batch is copied once with copier.split set.

// dirty reports whether any null among count slots of d, starting at slot at, has a value that is not normalized.
func dirty(n *node, d arrow.ArrayData, at, count int) bool {
	bits := start(d, 0, 0)
	for end := at + count; at < end; {
		one, run := bitmap.Run(bits, int64(at), end-at)
		if !one && dirtyRun(n, d, at, run) {
			return true
		}
		at += run
	}
	return false
}

// dirtyRun is dirty for count nulls, starting at slot at.
func dirtyRun(n *node, d arrow.ArrayData, at, count int) bool {
	switch n.kind {
	case kindVar, kindList:
		lo, hi := offsets(n, d, at, count)
		return lo != hi
	case kindFixedList:
		return !allNull(n.kids[0], d.Children()[0], at*n.width, count*n.width)
	case kindStruct:
		for i, kid := range n.kids {
			if !allNull(kid, d.Children()[i], at, count) {
				return true
			}
		}
	}
	return false
}

// allNull reports whether count slots of d, starting at slot from, are null.
func allNull(n *node, d arrow.ArrayData, from, count int) bool {
	if n.kind == kindNull || count == 0 {
		return true
	}
	if d.NullN() == 0 || len(buffer(d, 0)) < (d.Offset()+from+count+7)/8 {
		return false
	}
	return bitmap.Ones(start(d, 0, 0), int64(d.Offset()+from), count) == 0
}

// cut splits the pieces of a node at its nulls, so that values in null slots are not copied.
func (p *copier) cut(n *node, ps []piece) []piece {
	if n.kind == kindNull || n.kind == kindBool || n.kind == kindFixed {
		return ps
	}
	sb, out := &p.buffers[n.id], p.cuts[n.id][:0]
	for _, q := range ps {
		if q.src < 0 || q.n == 0 || sb.valid[q.src] == nil {
			out = append(out, q)
			continue
		}
		out = appendRuns(out, q, sb.valid[q.src], sb.bitOf(q.src))
	}
	p.cuts[n.id] = out
	return out
}

func appendRuns(out []piece, q piece, bits unsafe.Pointer, bit int64) []piece {
	for q.n > 0 {
		one, run := bitmap.Run(bits, q.start+bit, int(q.n))
		part := piece{start: q.start, n: int32(run), src: q.src}
		if !one {
			part = piece{n: int32(run), src: nulls}
		}
		out = append(out, part)
		q.start += int64(run)
		q.n -= int32(run)
	}
	return out
}
