// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"math"
	"slices"
	"unsafe"

	"github.com/kubeflow/datacache/cacheserver/rows/bitmap"
)

// maxBody is the maximum size of a body, and of the slots or data of one array: 32-bit offsets and gRPC messages end at 2 GiB.
const maxBody = math.MaxInt32 - 1<<20

// piece is a run of n consecutive slots of one source. With src < 0 it is n nulls.
type piece struct {
	start int64
	n     int32
	src   int32
}

const nulls = int32(-1)

// sum is the total that a copier will write for one node.
type sum struct {
	slots int64
	bytes int64 // data of kindVar
	nulls int64 // only with exact
	valid bool  // a validity bitmap is needed
}

// copier copies rows from sources to one body in three steps: measure, place, fill. It is reused, by one goroutine at a time.
type copier struct {
	buffers []sourceBuffers // the sources' buffers, by node of the layout

	exact  bool // count nulls when measuring, so that no unnecessary bitmap is placed
	clean  bool // the sources are chunks: null slots are zero, columns are in strips, and a message may point into them
	whole  bool // all data is copied to the body, also what a message could point to in a chunk (see clean)
	packed bool // the destination is a chunk: columns are written to strips, integers in fewer bytes; with clean, in the forms of their only source
	split  bool // cut pieces at nulls so that values in null slots are not copied; see normal.go

	rows  []piece   // the rows to copy
	items [][]piece // by node: for each piece of it, the piece of child slots (bytes, for kindVar) that its offsets span
	cuts  [][]piece // by node: its pieces cut at nulls, if split is set
	of    [][]piece // by node: the pieces to copy
	sums  []sum     // by node
	forms []form    // by node, if packed: those of the destination
	table formTable // the forms of the sources, if a node of them is narrow

	fields []fieldNode // by node of the projection
	spans  []span      // by buffer of the projection: its range in the message's body or in the slab
	homes  []int64     // by buffer of the projection: its offset in body, or referred
	starts []int64     // by strip: its offset in body
	parts  [][]part    // by strip
	body   []byte      // destination of the copied buffers
}

// referred is the value in homes of a buffer that is not copied: the message refers to the chunks' memory.
const referred = int64(-1)

// referBytes is the minimum mean length of a buffer's pieces for which a message points to them instead of copying them. Each pointer
// costs a few allocations on its way through gRPC; below this length a copy is cheaper.
const referBytes = 4 << 10

func newCopier(l *Layout) *copier {
	n := l.ids()
	return &copier{
		items: make([][]piece, n), cuts: make([][]piece, n), of: make([][]piece, n), sums: make([]sum, n), forms: make([]form, n),
		starts: make([]int64, len(l.strips)), parts: make([][]part, len(l.strips)),
	}
}

// reset clears the rows and sums.
func (p *copier) reset() {
	p.rows = p.rows[:0]
	clear(p.sums)
	clear(p.of)
	for i := range p.items {
		p.items[i] = p.items[i][:0]
	}
}

// measure adds p.rows[from:] to the sums of the nodes, which are whole columns.
func (p *copier) measure(nodes []*node, from int) {
	rows := int64(0)
	for i := range p.rows[from:] {
		rows += int64(p.rows[from+i].n)
	}
	for i := 0; i < len(nodes); i += nodes[i].count {
		p.measureNode(nodes[i], p.rows, from, rows)
	}
}

// measureNode adds ps[from:], which have slots slots in total, to the sums of a node and its children.
func (p *copier) measureNode(n *node, ps []piece, from int, slots int64) {
	s, sb := &p.sums[n.id], &p.buffers[n.id]
	if p.split {
		ps = p.cut(n, ps)
	}
	p.of[n.id] = ps
	s.slots += slots
	p.measureNulls(n, s, sb, ps[from:])
	switch n.kind {
	case kindVar:
		s.bytes += p.measureItems(n, sb, ps, from)
	case kindList:
		total := p.measureItems(n, sb, ps, from)
		p.measureNode(n.kids[0], p.items[n.id], from, total)
	case kindFixedList:
		items := p.items[n.id][:from]
		for _, q := range ps[from:] {
			items = append(items, piece{start: q.start * int64(n.width), n: q.n * int32(n.width), src: q.src})
		}
		p.items[n.id] = items
		p.measureNode(n.kids[0], items, from, slots*int64(n.width))
	case kindStruct:
		for _, kid := range n.kids {
			p.measureNode(kid, ps, from, slots)
		}
	}
}

func (p *copier) measureItems(n *node, sb *sourceBuffers, ps []piece, from int) int64 {
	items, total := slices.Grow(p.items[n.id][:from], len(ps)-from), int64(0)
	if n.width == 4 {
		items, total = appendItems[int32](items, sb.a, ps[from:])
	} else {
		items, total = appendItems[int64](items, sb.a, ps[from:])
	}
	p.items[n.id] = items
	return total
}

// appendItems appends, for each piece of list slots, the piece of child slots between its offsets.
func appendItems[O int32 | int64](items []piece, offsets []unsafe.Pointer, ps []piece) ([]piece, int64) {
	total := int64(0)
	for batch := range ahead(ps, offsets, int(unsafe.Sizeof(O(0)))) {
		for i := range batch {
			q := &batch[i]
			if q.n == 0 || q.src < 0 {
				items = append(items, piece{src: q.src})
				continue
			}
			first := unsafe.Add(offsets[q.src], uintptr(q.start)*unsafe.Sizeof(O(0)))
			lo := int64(*(*O)(first))
			hi := int64(*(*O)(unsafe.Add(first, uintptr(q.n)*unsafe.Sizeof(O(0)))))
			items = append(items, piece{start: lo, n: int32(hi - lo), src: q.src})
			total += hi - lo
		}
	}
	return items, total
}

func (p *copier) measureNulls(n *node, s *sum, sb *sourceBuffers, ps []piece) {
	if n.kind == kindNull {
		s.nulls = s.slots
		return
	}
	if !p.exact {
		if sb.nullable && !s.valid {
			s.valid = slices.ContainsFunc(ps, func(q piece) bool { return q.src < 0 || sb.valid[q.src] != nil })
		}
		return
	}
	for _, q := range ps {
		switch {
		case q.src < 0:
			s.nulls += int64(q.n)
		case sb.valid[q.src] != nil:
			s.nulls += int64(int(q.n) - bitmap.Ones(sb.valid[q.src], q.start+sb.bitOf(q.src), int(q.n)))
		}
	}
	s.valid = s.nulls > 0
}

// bytes returns the length of the measured body. ok is false if the body, or an array in it, exceeds maxBody.
func (p *copier) bytes(nodes []*node) (total int64, ok bool) {
	for _, n := range nodes {
		s := &p.sums[n.id]
		if s.slots > maxBody || s.bytes > maxBody {
			return total, false
		}
		if s.valid {
			total += padded((s.slots + 7) / 8)
		}
		switch n.kind {
		case kindBool:
			total += padded((s.slots + 7) / 8)
		case kindFixed:
			total += padded(s.slots * p.slotBytes(n))
		case kindLength:
			total += padded(s.slots * 4)
		case kindList:
			total += padded((s.slots + 1) * int64(n.width))
		case kindVar:
			total += padded((s.slots+1)*int64(n.width)) + padded(s.bytes)
		}
	}
	return total, total <= maxBody
}

// valueBytes returns the bytes of a value of kindFixed in the body.
func (p *copier) valueBytes(n *node) int64 {
	if p.packed && n.formed() {
		return int64(p.forms[n.id].width)
	}
	return int64(n.width)
}

// slotBytes returns the bytes that a slot of kindFixed takes in the body. A strip's row counts once, for the strip's first column.
func (p *copier) slotBytes(n *node) int64 {
	switch {
	case !p.packed || n.strip == nil:
		return p.valueBytes(n)
	case n == n.strip.nodes[0]:
		return int64(p.forms[n.id].stride)
	}
	return 0
}

// place assigns an offset in the body to each buffer, and returns the body's length. Buffers that are referred to have no offset
// there; assemble sets the offset in their span.
func (p *copier) place(nodes []*node) int64 {
	p.fields, p.spans, p.homes = p.fields[:0], p.spans[:0], p.homes[:0]
	at := int64(0)
	put := func(length int64) {
		p.spans = append(p.spans, span{offset: at, length: length})
		p.homes = append(p.homes, at)
		at += padded(length)
	}
	values := func(n *node, slots, width int64, pieces int) {
		length := slots * width
		switch {
		case p.packed && n.strip != nil:
			if n == n.strip.nodes[0] {
				p.starts[n.strip.id] = at
			}
			home := p.starts[n.strip.id] + int64(p.forms[n.id].at)
			p.spans = append(p.spans, span{offset: home, length: length})
			p.homes = append(p.homes, home)
			at += padded(slots * p.slotBytes(n))
		case p.clean && !p.packed && !p.whole && n.strip == nil && length >= referBytes*int64(pieces) && p.asStored(n):
			p.spans = append(p.spans, span{length: length})
			p.homes = append(p.homes, referred)
		default:
			put(length)
		}
	}
	for _, n := range nodes {
		s := &p.sums[n.id]
		p.fields = append(p.fields, fieldNode{length: s.slots, nulls: s.nulls})
		if n.kind != kindNull {
			put(bitmapBytes(s))
		}
		switch n.kind {
		case kindBool:
			put((s.slots + 7) / 8)
		case kindFixed:
			values(n, s.slots, p.valueBytes(n), len(p.of[n.id]))
		case kindLength:
			put(s.slots * 4)
		case kindList:
			put((s.slots + 1) * int64(n.width))
		case kindVar:
			put((s.slots + 1) * int64(n.width))
			values(n, s.bytes, 1, len(p.items[n.id]))
		}
	}
	return at
}

func bitmapBytes(s *sum) int64 {
	if !s.valid {
		return 0
	}
	return (s.slots + 7) / 8
}
