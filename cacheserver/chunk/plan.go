// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package chunk

import (
	"math"
	"slices"
	"unsafe"
)

// maxBody is the most that a body, or one array's slots or data, may reach: 32-bit offsets and one gRPC
// message end at 2 GiB.
const maxBody = math.MaxInt32 - 1<<20

// piece is n consecutive slots of one source. src < 0 stands for n nulls.
type piece struct {
	start int64
	n     int32
	src   int32
}

const nulls = int32(-1)

// sum is what a plan will write for one node.
type sum struct {
	slots int64
	bytes int64 // data of kindVar
	nulls int64 // exact plans only
	valid bool  // needs a bitmap
}

// plan copies rows from sources to one body: measure, then place, then fill. It is scratch to be reused, for
// one goroutine at a time.
type plan struct {
	lanes []lane // by node of the layout

	exact bool // count nulls when measuring, so that no bitmap is placed in vain
	clean bool // the sources are slabs: nothing but zeros below a null
	split bool // cut pieces so that nothing below a null is copied; see normal.go

	rows  []piece   // what to copy
	items [][]piece // by node: child slots of each of its pieces (bytes of kindVar)
	cuts  [][]piece // by node: its pieces cut at nulls, with split
	of    [][]piece // by node: the pieces that its slots follow
	sums  []sum     // by node

	fields []fieldNode // by node of the projection
	spans  []span      // by buffer of the projection
	body   []byte
}

func newPlan(l *Layout) *plan {
	n := len(l.nodes)
	return &plan{items: make([][]piece, n), cuts: make([][]piece, n), of: make([][]piece, n), sums: make([]sum, n)}
}

// reset forgets the rows and sums.
func (p *plan) reset() {
	p.rows = p.rows[:0]
	clear(p.sums)
	clear(p.of)
	for i := range p.items {
		p.items[i] = p.items[i][:0]
	}
}

// measure adds the rows from piece number from on to the sums of the nodes, which are whole columns.
func (p *plan) measure(nodes []*node, from int) {
	for i := 0; i < len(nodes); i += nodes[i].count {
		p.measureNode(nodes[i], p.rows, from)
	}
}

func (p *plan) measureNode(n *node, ps []piece, from int) {
	s, ln := &p.sums[n.id], &p.lanes[n.id]
	if p.split {
		ps = p.cut(n, ps)
	}
	p.of[n.id] = ps
	for i := range ps[from:] {
		s.slots += int64(ps[from+i].n)
	}
	p.measureNulls(n, s, ln, ps[from:])
	switch n.kind {
	case kindVar:
		s.bytes += p.measureItems(n, ln, ps, from)
	case kindList:
		p.measureItems(n, ln, ps, from)
		p.measureNode(n.kids[0], p.items[n.id], from)
	case kindFixedList:
		items := p.items[n.id][:from]
		for _, q := range ps[from:] {
			items = append(items, piece{start: q.start * int64(n.width), n: q.n * int32(n.width), src: q.src})
		}
		p.items[n.id] = items
		p.measureNode(n.kids[0], items, from)
	case kindStruct:
		for _, kid := range n.kids {
			p.measureNode(kid, ps, from)
		}
	}
}

func (p *plan) measureItems(n *node, ln *lane, ps []piece, from int) int64 {
	items, total := slices.Grow(p.items[n.id][:from], len(ps)-from), int64(0)
	if n.width == 4 {
		items, total = appendItems[int32](items, ln.a, ps[from:])
	} else {
		items, total = appendItems[int64](items, ln.a, ps[from:])
	}
	p.items[n.id] = items
	return total
}

// appendItems appends, for each piece of lists, the piece of child slots that its offsets span.
func appendItems[O int32 | int64](items []piece, offsets []unsafe.Pointer, ps []piece) ([]piece, int64) {
	total := int64(0)
	for i := range ps {
		q := &ps[i]
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
	return items, total
}

func (p *plan) measureNulls(n *node, s *sum, ln *lane, ps []piece) {
	if n.kind == kindNull {
		s.nulls = s.slots
		return
	}
	if !p.exact {
		if !s.valid {
			s.valid = slices.ContainsFunc(ps, func(q piece) bool { return q.src < 0 || ln.valid[q.src] != nil })
		}
		return
	}
	for _, q := range ps {
		switch {
		case q.src < 0:
			s.nulls += int64(q.n)
		case ln.valid[q.src] != nil:
			s.nulls += int64(int(q.n) - ones(ln.valid[q.src], q.start+ln.bitOf(q.src), int(q.n)))
		}
	}
	s.valid = s.nulls > 0
}

// bytes is the length of a body by the sums; ok is false when the body, or an array in it, passes maxBody.
func (p *plan) bytes(nodes []*node) (total int64, ok bool) {
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
			total += padded(s.slots * int64(n.width))
		case kindList:
			total += padded((s.slots + 1) * int64(n.width))
		case kindVar:
			total += padded((s.slots+1)*int64(n.width)) + padded(s.bytes)
		}
	}
	return total, total <= maxBody
}

// place decides where in the body each buffer goes.
func (p *plan) place(nodes []*node) {
	p.fields, p.spans = p.fields[:0], p.spans[:0]
	at := int64(0)
	put := func(length int64) {
		p.spans = append(p.spans, span{offset: at, length: length})
		at += padded(length)
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
			put(s.slots * int64(n.width))
		case kindList:
			put((s.slots + 1) * int64(n.width))
		case kindVar:
			put((s.slots + 1) * int64(n.width))
			put(s.bytes)
		}
	}
}

func bitmapBytes(s *sum) int64 {
	if !s.valid {
		return 0
	}
	return (s.slots + 7) / 8
}
