// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"math"
	"math/bits"
	"slices"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
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
	sb, e := &p.buffers[n.id], extent{least: math.MaxInt64, most: math.MinInt64, exact: n.strip != nil}
	for i := range p.of[n.id] {
		q := &p.of[n.id][i]
		if q.src < 0 || q.n == 0 {
			continue
		}
		shorter := false
		if valid := sb.valid[q.src]; valid == nil {
			shorter = e.addValues(sb.a[q.src], q.start, int(q.n), n.width)
		} else {
			shorter = e.addValid(sb.a[q.src], q, bitmap(valid, q.start+sb.bitOf(q.src)+int64(q.n)), sb.bitOf(q.src), n.width)
		}
		if !shorter {
			return whole(n.width)
		}
	}
	return e.form()
}

// extent is the least and the greatest of some integers. Unsigned integers are compared as signed ones with the same bits; what counts is the
// difference, modulo 2^64.
type extent struct {
	least, most int64
	exact       bool // any number of bytes may be used, as in a strip; else 1, 2, 4 or 8
}

// extentBlock is the number of values between two checks of addValues whether it can stop.
const extentBlock = 8192

// addValues adds n values of width bytes, starting at slot start. It returns false, and stops, when they need all of their bytes.
func (e *extent) addValues(src unsafe.Pointer, start int64, n, width int) bool {
	for end := start + int64(n); start < end; start += extentBlock {
		from, k := unsafe.Add(src, start*int64(width)), int(min(end-start, extentBlock))
		var least, most int64
		if width == 4 {
			a, b := extentOf(unsafe.Slice((*int32)(from), k))
			least, most = int64(a), int64(b)
		} else {
			least, most = extentOf(unsafe.Slice((*int64)(from), k))
		}
		e.least, e.most = min(e.least, least), max(e.most, most)
		if e.bytes(uint64(e.most)-uint64(e.least)) >= width {
			return false
		}
	}
	return true
}

// addValid is addValues for the values of a piece that are valid; valid has the bit of slot 0 at position bit.
func (e *extent) addValid(src unsafe.Pointer, q *piece, valid []byte, bit int64, width int) bool {
	for at := q.start; at < q.start+int64(q.n); at += 64 {
		n := int(min(64, q.start+int64(q.n)-at))
		word, all := load64(valid, bit+at), ^uint64(0)>>(64-n)
		switch word &= all; word {
		case 0:
			continue
		case all:
			if !e.addValues(src, at, n, width) {
				return false
			}
			continue
		}
		var least, most int64
		if width == 4 {
			a, b := extentOfSome(unsafe.Slice((*int32)(unsafe.Add(src, at*4)), n), word)
			least, most = int64(a), int64(b)
		} else {
			least, most = extentOfSome(unsafe.Slice((*int64)(unsafe.Add(src, at*8)), n), word)
		}
		e.least, e.most = min(e.least, least), max(e.most, most)
	}
	return e.least > e.most || e.bytes(uint64(e.most)-uint64(e.least)) < width
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
	if lanes := vectorBytes / int(unsafe.Sizeof(least)); hasAVX2 && len(values) >= lanes {
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

// form is the shortest form for the values. The base is 0 if that costs no bytes, so that most nulls are zeros already.
func (e *extent) form() form {
	if e.least > e.most {
		return form{width: 1, signed: 1, unsigned: 1, stride: 1}
	}
	f := whole(e.bytes(uint64(e.most) - uint64(e.least)))
	f.base = e.least
	f.signed = power(max(bits.Len64(uint64(e.least^e.least>>63)), bits.Len64(uint64(e.most^e.most>>63))) + 1)
	f.unsigned = power(bits.Len64(uint64(e.most | e.least>>63)))
	if e.least >= 0 && e.bytes(uint64(e.most)) == int(f.width) {
		f.base = 0
	}
	return f
}

// bytes is the number of bytes, at least 1, that a number takes.
func (e *extent) bytes(x uint64) int {
	n := bits.Len64(x)
	if !e.exact {
		return int(power(n))
	}
	return max(1, (n+7)/8)
}

// power is the least of 1, 2, 4 and 8 bytes that hold a number of bits.
func power(n int) uint8 {
	return 1 << bits.Len(uint(max(1, (n+7)/8)-1))
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
			narrow(dst[at:at+n*int(f.width)], unsafe.Add(src[q.src], int(q.start)*width), width, f)
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
				widen(dst[at:at+size], unsafe.Add(src[q.src], q.start*int64(f.stride)), n.width, f)
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
