// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"math"
	"slices"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/kubeflow/datacache/cacheserver/rows/bitmap"
	"github.com/kubeflow/datacache/cacheserver/rows/integer"
)

// form says how a slab stores the values of a node of integers or of a column of a strip: the difference of each value from base, in width
// bytes. See ADR 43.
type form struct {
	base     int64
	width    uint8
	at       uint8  // offset in a strip's row
	signed   uint8  // bytes, 1, 2, 4 or 8, that hold the values without a base: as signed integers
	unsigned uint8  // and as unsigned ones; 8 if there is a negative value
	stride   uint16 // bytes from value to value
	kind     uint16 // only in a formTable: equal in chunks with the same widths, unless it is mostKinds
}

// mostKinds is the greatest kind of a form.
const mostKinds = math.MaxUint16

// whole is the form of values of width bytes that are stored as they are, outside of strips.
func whole(width int) form {
	return form{width: uint8(width), signed: 8, unsigned: 8, stride: uint16(width)}
}

// formed reports whether a node's values have a form; the values of other nodes are stored unchanged.
func (n *node) formed() bool { return n.integer || n.strip != nil }

// isInteger reports whether values of a type are integers of 32 or 64 bits, which chunks may store in fewer bytes.
func isInteger(dt arrow.DataType) bool {
	switch dt.ID() {
	case arrow.INT32, arrow.UINT32, arrow.DATE32, arrow.TIME32,
		arrow.INT64, arrow.UINT64, arrow.DATE64, arrow.TIME64, arrow.TIMESTAMP, arrow.DURATION:
		return true
	}
	return false
}

// chooseForms sets the forms of the measured rows: the shortest ones for a chunk, otherwise the values as they are.
func (p *copier) chooseForms(l *Layout) {
	for _, n := range l.nodes {
		p.forms[n.id] = form{}
		if n.formed() {
			p.forms[n.id] = whole(n.width)
		}
		if p.packed && n.integer {
			p.forms[n.id] = p.formOf(n)
		}
	}
	for _, s := range l.strips {
		stride := uint16(0)
		for _, n := range s.nodes {
			p.forms[n.id].at = uint8(stride)
			stride += uint16(p.forms[n.id].width)
		}
		for _, n := range s.nodes {
			p.forms[n.id].stride = stride
		}
	}
}

// formOf returns the shortest form for the values of a node of integers. Values in null slots have no influence on it.
func (p *copier) formOf(n *node) form {
	sb, e := &p.buffers[n.id], integer.NewExtent(n.strip != nil)
	for i := range p.of[n.id] {
		q := &p.of[n.id][i]
		if q.src < 0 || q.n == 0 {
			continue
		}
		shorter := false
		if valid := sb.valid[q.src]; valid == nil {
			shorter = e.Add(unsafe.Add(sb.a[q.src], q.start*int64(n.width)), int(q.n), n.width)
		} else {
			shorter = addValid(&e, sb.a[q.src], q, bitmap.Bytes(valid, q.start+sb.bitOf(q.src)+int64(q.n)), sb.bitOf(q.src), n.width)
		}
		if !shorter {
			return whole(n.width)
		}
	}
	base, width, signed, unsigned := e.Fit()
	f := whole(width)
	f.base, f.signed, f.unsigned = base, uint8(signed), uint8(unsigned)
	return f
}

// addValid adds the values of a piece that are valid to an extent; valid has the bit of slot 0 at position bit. It returns false, and stops,
// when the values need all of their bytes.
func addValid(e *integer.Extent, src unsafe.Pointer, q *piece, valid []byte, bit int64, width int) bool {
	for at := q.start; at < q.start+int64(q.n); at += 64 {
		n := int(min(64, q.start+int64(q.n)-at))
		from, word, all := unsafe.Add(src, at*int64(width)), bitmap.Load64(valid, bit+at), ^uint64(0)>>(64-n)
		switch word &= all; word {
		case 0:
		case all:
			if !e.Add(from, n, width) {
				return false
			}
		default:
			e.AddSome(from, n, width, word)
		}
	}
	return e.Shorter(width)
}

// writeNarrow writes the values of the pieces in a form and returns where they end. What it writes for nulls is undefined.
func writeNarrow(dst []byte, width int, f *form, src []unsafe.Pointer, ps []piece) int {
	at := 0
	for i := range ps {
		q := &ps[i]
		n := int(q.n)
		switch {
		case n == 0:
		case q.src < 0:
			clear(dst[at : at+n*int(f.width)])
		default:
			integer.Narrow(dst[at:at+n*int(f.width)], unsafe.Add(src[q.src], int(q.start)*width), width, int(f.width), f.base)
		}
		at += n * int(f.width)
	}
	return at
}

// formTable has the forms of all nodes of chunks.
type formTable struct {
	forms []form // by chunk and node
	nodes int
}

// of is the form of a node in a chunk.
func (t *formTable) of(chunk int32, node int) *form { return &t.forms[int(chunk)*t.nodes+node] }

// addForms marks the nodes whose values some chunk stores in fewer bytes, and makes the table of the chunks' forms if there are any.
func (r *Rows) addForms() {
	t := formTable{nodes: len(r.layout.nodes)}
	narrow := false
	for _, n := range r.layout.nodes {
		if !n.formed() {
			continue
		}
		sb := &r.buffers[n.id]
		for _, c := range r.chunks {
			f := &c.forms[n.id]
			sb.narrow = sb.narrow || int(f.width) != n.width || n.strip != nil && int(f.stride) != n.strip.stride
			sb.based = sb.based || f.base != 0
			sb.dirty = sb.dirty || f.base != 0 && c.spans[n.buf].length > 0
		}
		narrow = narrow || sb.narrow
	}
	if !narrow {
		return
	}
	kinds := map[string]uint16{}
	for _, c := range r.chunks {
		key := widths(c.forms)
		if _, ok := kinds[key]; !ok {
			kinds[key] = uint16(min(len(kinds), mostKinds))
		}
		for _, f := range c.forms {
			f.kind = kinds[key]
			t.forms = append(t.forms, f)
		}
	}
	r.forms = t
}

// widths is the widths of the forms as a key of a map.
func widths(forms []form) string {
	key := make([]byte, 0, len(forms))
	for i := range forms {
		key = append(key, forms[i].width)
	}
	return string(key)
}

// writeWide writes the values of a node's pieces in chunks with the width that they have in messages, and returns where they end.
func (p *copier) writeWide(dst []byte, n *node) int {
	ps, src, at := p.of[n.id], p.buffers[n.id].a, 0
	batch := ps[:min(len(ps), aheadPieces)]
	p.prefetch(batch, n, src)
	for len(batch) > 0 {
		ps = ps[len(batch):]
		next := ps[:min(len(ps), aheadPieces)]
		p.prefetch(next, n, src)
		for i := range batch {
			q := &batch[i]
			size := int(q.n) * n.width
			switch {
			case size == 0:
			case q.src < 0:
				clear(dst[at : at+size])
			default:
				f := p.table.of(q.src, n.id)
				integer.Widen(dst[at:at+size], unsafe.Add(src[q.src], q.start*int64(f.stride)), n.width, int(f.width), f.base)
			}
			at += size
		}
		batch = next
	}
	return at
}

// asStored reports whether the chunks of a node's pieces have the values as messages do.
func (p *copier) asStored(n *node) bool {
	return !p.buffers[n.id].narrow || !slices.ContainsFunc(p.of[n.id], func(q piece) bool {
		f := p.table.of(max(q.src, 0), n.id)
		return q.n > 0 && (int(f.width) != n.width || f.base != 0)
	})
}

// prefetch prefetches slots of a node, or rows of its strip, in chunks.
func (p *copier) prefetch(ps []piece, n *node, src []unsafe.Pointer) {
	for len(ps) > 0 {
		k, stride := 1, uint16(1)
		if ps[0].src >= 0 {
			stride = p.table.of(ps[0].src, n.id).stride
			for k < len(ps) && ps[k].src >= 0 && p.table.of(ps[k].src, n.id).stride == stride {
				k++
			}
		}
		prefetch(ps[:k], src, int(stride))
		ps = ps[k:]
	}
}
