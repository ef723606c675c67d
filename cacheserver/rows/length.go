// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
)

// HasLength reports whether a column of this type has lengths that can be read in its place: the number of items of a list or map, the
// number of bytes of a string or binary value, and 0 for a null.
func HasLength(dt arrow.DataType) bool {
	k, _, _ := shape(storage(plainType(dt)))
	return k == kindList || k == kindVar
}

// LengthField is the field of the lengths of a column.
func LengthField(name string) arrow.Field {
	return arrow.Field{Name: "length(" + name + ")", Type: arrow.PrimitiveTypes.Int32}
}

// addLengths makes a node of lengths for each column that has lengths. It reads the column's offsets, and has buffers of its own in messages.
func (l *Layout) addLengths() {
	for i := range l.columns {
		root := l.columns[i].root
		if root.kind == kindVar || root.kind == kindList {
			l.columns[i].length = &node{kind: kindLength, width: root.width, id: len(l.nodes) + i, buf: root.buf, count: 1, typ: arrow.PrimitiveTypes.Int32, path: root.path}
		}
	}
}

// root is the node of a column of a projection.
func (l *Layout) root(column int) *node {
	if own := len(l.columns); column >= own {
		return l.columns[column-own].length
	}
	return l.columns[column].root
}

// ids is the number of nodes, including those of lengths.
func (l *Layout) ids() int { return len(l.nodes) + len(l.columns) }

// writeLengths writes the lengths of the pieces' slots, and clears the padding.
func writeLengths(dst []byte, n *node, src []unsafe.Pointer, ps []piece) {
	end := 0
	if n.width == 4 {
		end = lengths[int32](dst, src, ps)
	} else {
		end = lengths[int64](dst, src, ps)
	}
	clear(dst[end:])
}

// lengths writes the differences of offsets, and returns the end of what it wrote.
func lengths[O int32 | int64](dst []byte, src []unsafe.Pointer, ps []piece) int {
	out := unsafe.Slice((*int32)(unsafe.Pointer(unsafe.SliceData(dst))), len(dst)/4)
	at, size := 0, unsafe.Sizeof(O(0))
	for batch := range ahead(ps, src, int(size)) {
		for _, q := range batch {
			if q.n == 0 {
				continue
			}
			offsets := unsafe.Slice((*O)(unsafe.Add(src[q.src], uintptr(q.start)*size)), int(q.n)+1)
			for i := range int(q.n) {
				out[at+i] = int32(offsets[i+1] - offsets[i])
			}
			at += int(q.n)
		}
	}
	return 4 * at
}
