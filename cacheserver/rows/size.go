// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"fmt"
	"unsafe"

	"github.com/kubeflow/datacache/internal/words"
)

// rawRows is the size in bits of rows [lo, hi) of a source: as in a body, but without padding and with a validity bit for every slot.
// It depends only on the rows.
func (b *Builder) rawRows(src int, lo, hi int64) int64 {
	total := hi - lo
	for _, c := range b.layout.columns {
		bits, _ := b.rawSlots(c.root, src, lo, hi)
		total += bits
	}
	return total
}

// rawSlots is the size in bits of slots [lo, hi) of a node and its children in a source; most is the largest number of slots or bytes
// of data in one of the arrays.
func (b *Builder) rawSlots(n *node, src int, lo, hi int64) (bits, most int64) {
	slots := hi - lo
	bits, most = slots, slots
	switch n.kind {
	case kindBool:
		bits += slots
	case kindFixed:
		bits += slots * 8 * int64(n.width)
	case kindVar, kindList:
		if slots == 0 {
			return 0, 0
		}
		bits += slots * 8 * int64(n.width)
		lo, hi = b.offset(n, src, lo), b.offset(n, src, hi)
	case kindFixedList:
		lo, hi = lo*int64(n.width), hi*int64(n.width)
	}
	if n.kind == kindVar {
		return bits + 8*(hi-lo), max(most, hi-lo)
	}
	for _, kid := range n.kids {
		kidBits, kidMost := b.rawSlots(kid, src, lo, hi)
		bits, most = bits+kidBits, max(most, kidMost)
	}
	return bits, most
}

// offset is the start of the items of a list slot, or of the data of a value.
func (b *Builder) offset(n *node, src int, slot int64) int64 {
	at := unsafe.Add(b.buffers[n.id].a[src], slot*int64(n.width))
	if n.width == 4 {
		return int64(*(*int32)(at))
	}
	return *(*int64)(at)
}

// fits counts the rows of the copier. If they exceed maxBody, which only a single row can since rows are picked by size, it returns
// an error that names the widest column.
func (b *Builder) fits() (rows int64, err error) {
	total, most := int64(0), int64(0)
	var widest *node
	wide := int64(-1)
	for _, q := range b.copier.rows {
		rows += int64(q.n)
		for _, c := range b.layout.columns {
			bits, slots := b.rawSlots(c.root, int(q.src), q.start, q.start+int64(q.n))
			total, most = total+bits, max(most, slots)
			if bits > wide {
				widest, wide = c.root, bits
			}
		}
	}
	if total/8 > maxBody || most > maxBody {
		return 0, fmt.Errorf("%d row of %s, most of it in column %q: the limit is %s: leave the column out", rows, words.ExactBytes(total/8), widest.path, words.ExactBytes(maxBody))
	}
	return rows, nil
}
