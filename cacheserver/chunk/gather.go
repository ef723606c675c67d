// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package chunk

import (
	"fmt"
	"unsafe"
)

// maxGatherRows keeps the row count of one message within bounds when its columns take next to no memory.
const maxGatherRows = 1 << 24

// Gather makes one message of rows, in the order asked; a row may be asked twice. It takes as many of the
// first rows as fit in maxBytes of body, but at least one, and returns their number; no rows give a message
// without rows. An index outside [0, Len()) is an error.
func (r *Rows) Gather(p *Projection, rows []int64, maxBytes int) (m Message, n int, err error) {
	if err := r.enter(p); err != nil {
		return Message{}, 0, err
	}
	g := r.gatherer(p)
	defer r.done(g)
	limit := int64(min(max(maxBytes, 0), maxBody))
	n, err = g.collect(r, p, rows[:min(len(rows), maxGatherRows)], limit)
	if err != nil {
		r.Release()
		return Message{}, 0, err
	}
	return r.message(p, g, n), n, nil
}

// gatherer is scratch for one gather.
type gatherer struct {
	*plan
	kept []sum
}

// gatherer takes scratch with lanes for the columns of p.
func (r *Rows) gatherer(p *Projection) *gatherer {
	g, ok := r.plans.Get().(*gatherer)
	if !ok {
		g = &gatherer{plan: newPlan(r.layout)}
		g.clean = true
	}
	g.lanes = r.lanesOf(p)
	g.reset()
	return g
}

func (r *Rows) done(g *gatherer) {
	r.plans.Put(g)
}

// lanesOf makes sure that the lanes of p's columns are there.
func (r *Rows) lanesOf(p *Projection) []lane {
	r.mu.RLock()
	missing := r.missing(p)
	r.mu.RUnlock()
	if !missing {
		return r.lanes
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range p.columns {
		if r.ready[c] {
			continue
		}
		for _, chunk := range r.chunks {
			addSlab(r.lanes, r.layout.columns[c].root, &chunk.slab)
		}
		r.ready[c] = true
	}
	return r.lanes
}

func (r *Rows) missing(p *Projection) bool {
	for _, c := range p.columns {
		if !r.ready[c] {
			return true
		}
	}
	return false
}

// collect locates and measures as many of the rows as fit in limit, at least one.
func (g *gatherer) collect(r *Rows, p *Projection, rows []int64, limit int64) (n int, err error) {
	most, length := len(rows), int64(0) // rows that may still fit; of those that do
	step := r.guess(limit)
	for tight := false; most > 0; {
		step = min(step, most)
		from := len(g.rows)
		if err := g.locate(r, rows[n:n+step]); err != nil {
			return 0, err
		}
		g.kept = append(g.kept[:0], g.sums...)
		g.measure(p.nodes, from)
		total, ok := g.bytes(p.nodes)
		first := n == 0 && step == 1
		switch {
		case ok && (total <= limit || first):
			n, most, length = n+step, most-step, total
		case first:
			return 0, fmt.Errorf("row %d takes %s: the limit is %s", rows[0], humanBytes(total), humanBytes(maxBody))
		default:
			g.undo(p, from)
			most, tight = step-1, true
		}
		if tight {
			step = (most + 1) / 2
		} else {
			step = int((limit-length)*int64(n)/max(length, 1)) + 1
		}
	}
	return n, nil
}

// guess is a number of rows that fit in nine tenths of limit when rows are of average length.
func (r *Rows) guess(limit int64) int {
	average := max(1, r.bytes/max(1, r.Len()))
	return int(limit/10*9/average) + 1
}

// locate appends the pieces of rows; consecutive rows of one chunk are one piece.
func (g *gatherer) locate(r *Rows, rows []int64) error {
	end := r.Len()
	for i := 0; i < len(rows); {
		row := rows[i]
		if row < 0 || row >= end {
			return fmt.Errorf("row %d: there are rows [0, %d)", row, end)
		}
		c := r.find(row)
		n := 1
		for next := row + 1; i+n < len(rows) && rows[i+n] == next && next < r.starts[c+1]; next++ {
			n++
		}
		g.rows = append(g.rows, piece{start: row - r.starts[c], n: int32(n), src: int32(c)})
		i += n
	}
	return nil
}

// undo takes back the last measure: the pieces from number from on.
func (g *gatherer) undo(p *Projection, from int) {
	copy(g.sums, g.kept)
	g.rows = g.rows[:from]
	for _, n := range p.nodes {
		g.of[n.id] = g.of[n.id][:from]
		g.items[n.id] = g.items[n.id][:min(from, len(g.items[n.id]))]
	}
}

// message makes the message of rows that were measured. It takes over a reference on r.
func (r *Rows) message(p *Projection, g *gatherer, rows int) Message {
	var buf []byte
	if length := g.place(p.nodes); length > 0 {
		buf = r.pool.get(int(length))
	}
	g.fill(p.nodes, buf)
	m := Message{Header: make([]byte, p.headers.size()), Rows: rows, lease: &lease{rows: r, buf: buf}}
	m.Body, m.BodyLen = g.assemble(p.nodes, buf)
	nodes, spans := p.headers.begin(m.Header, int64(rows), int64(m.BodyLen))
	copy(nodes, g.fields)
	copy(spans, g.spans)
	return m
}

// assemble strings together what was copied and what is referred to, and settles where each buffer starts. It
// leaves out the bitmaps that turned out to have no null.
func (g *gatherer) assemble(nodes []*node, buf []byte) (body [][]byte, length int) {
	var copied [2]int64 // stretch of buf that the body takes next
	flush := func() {
		if copied[0] < copied[1] {
			body = append(body, buf[copied[0]:copied[1]:copied[1]])
		}
		copied = [2]int64{}
	}
	i, at := 0, int64(0)
	for k, n := range nodes {
		for b := range n.kind.buffers() {
			s, home := &g.spans[i], g.homes[i]
			i++
			if b == 0 && g.fields[k].nulls == 0 {
				s.length = 0
			}
			s.offset = at
			size := padded(s.length)
			at += size
			switch {
			case size == 0:
			case home == referred:
				flush()
				body = g.refer(body, n)
				if pad := size - s.length; pad > 0 {
					body = append(body, zeros[:pad:pad])
				}
			case home == copied[1]:
				copied[1] += size
			default:
				flush()
				copied = [2]int64{home, home + size}
			}
		}
	}
	flush()
	return body, int(at)
}

// zeros pads what is referred to.
var zeros [align]byte

// refer appends the values, or the data, of a node where they lie.
func (g *gatherer) refer(body [][]byte, n *node) [][]byte {
	pieces, width, from := g.of[n.id], n.width, g.lanes[n.id].a
	if n.kind == kindVar {
		pieces, width, from = g.items[n.id], 1, g.lanes[n.id].b
	}
	for _, q := range pieces {
		if q.n > 0 && q.src >= 0 {
			body = append(body, unsafe.Slice((*byte)(unsafe.Add(from[q.src], int(q.start)*width)), int(q.n)*width))
		}
	}
	return body
}
