// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"fmt"
	"slices"
	"unsafe"

	"github.com/kubeflow/datacache/internal/words"
)

// maxGatherRows bounds the number of rows of one message when its columns need hardly any memory.
const maxGatherRows = 1 << 24

// Run is a range of consecutive rows. It is identical to epoch.Run.
type Run = struct {
	First uint64 // row
	Rows  uint64 // at least 1
}

// Gather makes one message of the first rows of runs, in the given order; a row may occur several times. It takes up to the given
// number of rows as far as they fit in maxBytes of body, but at least one, and returns the rest of the runs; it may shorten one of
// them in place. With 0 rows the message is empty. A run that is empty or not within [0, Len()) is an error, as are runs with fewer
// rows than requested.
func (r *Rows) Gather(p *Projection, runs []Run, rows, maxBytes int) (m Message, left []Run, err error) {
	if err := r.enter(p); err != nil {
		return Message{}, nil, err
	}
	g := r.gatherer(p)
	defer r.done(g)
	n, end, err := g.collect(r, p, runs, min(rows, maxGatherRows), int64(min(max(maxBytes, 0), maxBody)))
	if err != nil {
		r.Release()
		return Message{}, nil, err
	}
	if m, err = r.message(p, g, n); err != nil {
		return Message{}, nil, err
	}
	left = runs[end.run:]
	if end.row > 0 {
		left[0].First, left[0].Rows = left[0].First+end.row, left[0].Rows-end.row
	}
	return m, left, nil
}

// gatherer is the reusable state of a gather.
type gatherer struct {
	*copier
	kept []sum
	held held
}

// gatherer returns a reusable gatherer with the buffers of the columns of p.
func (r *Rows) gatherer(p *Projection) *gatherer {
	g, ok := r.copiers.Get().(*gatherer)
	if !ok {
		g = &gatherer{copier: newCopier(r.layout)}
		g.clean = true
	}
	g.buffers, g.table = r.buffersOf(p), r.forms
	g.reset()
	return g
}

func (r *Rows) done(g *gatherer) {
	g.held.drop()
	r.copiers.Put(g)
}

// buffersOf returns the source buffers, after adding those of columns of p that no earlier call used.
func (r *Rows) buffersOf(p *Projection) []sourceBuffers {
	r.mu.RLock()
	missing := r.missing(p)
	r.mu.RUnlock()
	if !missing {
		return r.buffers
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range p.columns {
		if r.ready[c] {
			continue
		}
		for _, chunk := range r.chunks {
			addSlab(r.buffers, r.layout.root(c), &chunk.slab)
		}
		r.ready[c] = true
	}
	return r.buffers
}

func (r *Rows) missing(p *Projection) bool {
	for _, c := range p.columns {
		if !r.ready[c] {
			return true
		}
	}
	return false
}

// collect locates and measures rows: at most the given number, as many as fit in limit, but at least one. It returns their number and
// the mark after them.
func (g *gatherer) collect(r *Rows, p *Projection, runs []Run, most int, limit int64) (n int, at mark, err error) {
	length := int64(0) // length of the rows that fit; most is how many more may fit
	step := r.guess(limit)
	for tight := false; most > 0; {
		step = min(step, most)
		from := len(g.rows)
		next, err := g.locate(r, runs, at, step)
		if err != nil {
			return 0, mark{}, err
		}
		if err := g.held.add(r, g.rows[from:]); err != nil {
			return 0, mark{}, err
		}
		g.kept = append(g.kept[:0], g.sums...)
		g.measure(p.nodes, from)
		total, ok := g.bytes(p.nodes)
		first := n == 0 && step == 1
		switch {
		case ok && (total <= limit || first):
			n, most, length, at = n+step, most-step, total, next
		case first:
			return 0, mark{}, fmt.Errorf("row %d takes %s: the limit is %s", runs[0].First, words.ExactBytes(total), words.ExactBytes(maxBody))
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
	return n, at, nil
}

// guess is the number of rows of average length that fit in nine tenths of limit.
func (r *Rows) guess(limit int64) int {
	average := max(1, r.sent/max(1, r.Len()))
	return int(limit/10*9/average) + 1
}

// mark is a position in runs: a row of one of them.
type mark struct {
	run int
	row uint64
}

// locate appends the pieces of the given number of rows, starting at a mark, and returns the mark after them. Consecutive rows of one
// chunk form one piece.
func (g *gatherer) locate(r *Rows, runs []Run, at mark, rows int) (mark, error) {
	end, pieces := uint64(r.Len()), slices.Grow(g.rows, min(rows, len(runs)-at.run))
	after := int64(-1) // the row after the last piece
	for left := uint64(rows); left > 0; {
		if at.run == len(runs) {
			return mark{}, fmt.Errorf("runs have %d rows fewer than asked for", left)
		}
		q := &runs[at.run]
		if q.Rows < 1 || q.Rows > end || q.First > end-q.Rows {
			return mark{}, fmt.Errorf("rows [%d, %d): there are rows [0, %d)", q.First, q.First+q.Rows, end)
		}
		row := int64(q.First + at.row)
		c := r.find(row)
		n := min(q.Rows-at.row, left, uint64(r.starts[c+1]-row))
		if start := row - r.starts[c]; row == after && start > 0 {
			pieces[len(pieces)-1].n += int32(n)
		} else {
			pieces = append(pieces, piece{start: start, n: int32(n), src: int32(c)})
		}
		after, left = row+int64(n), left-n
		if at.row += n; at.row == q.Rows {
			at = mark{run: at.run + 1}
		}
	}
	g.rows = pieces
	return at, nil
}

// undo reverts the last measure: it removes the pieces from index from on.
func (g *gatherer) undo(p *Projection, from int) {
	copy(g.sums, g.kept)
	g.rows = g.rows[:from]
	for _, n := range p.nodes {
		g.of[n.id] = g.of[n.id][:from]
		g.items[n.id] = g.items[n.id][:min(from, len(g.items[n.id]))]
	}
}

// message makes the message of the measured rows. It takes over the caller's reference on r.
func (r *Rows) message(p *Projection, g *gatherer, rows int) (Message, error) {
	m := Message{Header: make([]byte, p.headers.size()), Rows: rows, lease: &lease{rows: r, allowance: p.allowance}}
	g.whole = len(p.into) > 0
	length := g.place(p.nodes)
	if g.whole && length > int64(len(p.into)) {
		g.whole = false
		length = g.place(p.nodes)
	}
	buf := p.into[:0]
	if m.Placed = g.whole && length > 0; m.Placed {
		buf = p.into[:length]
	} else if length > 0 {
		if err := p.allowance.Reserve(int64(room(int(length)))); err != nil {
			r.Release()
			return Message{}, err
		}
		buf = r.pool.get(int(length))
		m.lease.buf = buf
	}
	g.fill(p.nodes, buf)
	if slices.Contains(g.homes, referred) {
		m.lease.held, g.held = g.held, nil
	}
	most := g.mostSlices(p.nodes)
	if err := m.lease.list(most); err != nil {
		m.Release()
		return Message{}, err
	}
	m.Body, m.BodyLen = g.assemble(p.nodes, buf, most)
	nodes, spans := p.headers.begin(m.Header, int64(rows), int64(m.BodyLen))
	copy(nodes, g.fields)
	copy(spans, g.spans)
	return m, nil
}

// mostSlices is the maximum number of slices of the body that assemble builds.
func (g *gatherer) mostSlices(nodes []*node) int {
	total, i := 1, 0 // a slice of copied bytes, and one more after each gap in them
	for k, n := range nodes {
		for b := range n.kind.buffers() {
			switch {
			case g.homes[i] == referred:
				total += len(g.referred(n)) + 2 // with padding
			case b == 0 && g.fields[k].nulls == 0 && g.spans[i].length > 0:
				total++
			}
			i++
		}
	}
	return total
}

// assemble builds the body, of at most most slices, from copied bytes and references, and sets the offset of each buffer. It omits bitmaps
// that turned out to have no null.
func (g *gatherer) assemble(nodes []*node, buf []byte, most int) (body [][]byte, length int) {
	if g.whole {
		g.omitBitmaps(nodes)
		return [][]byte{buf}, len(buf)
	}
	body = make([][]byte, 0, most)
	var copied [2]int64 // the range of buf that is appended to the body next
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

// omitBitmaps omits bitmaps that turned out to have no null from a body that stays as it was placed.
func (g *gatherer) omitBitmaps(nodes []*node) {
	i := 0
	for k, n := range nodes {
		if n.kind.buffers() > 0 && g.fields[k].nulls == 0 {
			g.spans[i].length = 0
		}
		i += n.kind.buffers()
	}
}

// referred returns the pieces of the values, or the data, of a node.
func (g *gatherer) referred(n *node) []piece {
	if n.kind == kindVar {
		return g.items[n.id]
	}
	return g.of[n.id]
}

// zeros is the padding after referenced buffers.
var zeros [align]byte

// refer appends slices of the values, or the data, of a node to the body, without copying.
func (g *gatherer) refer(body [][]byte, n *node) [][]byte {
	width, from := n.width, g.buffers[n.id].a
	if n.kind == kindVar {
		width, from = 1, g.buffers[n.id].b
	}
	for _, q := range g.referred(n) {
		if q.n > 0 && q.src >= 0 {
			body = append(body, unsafe.Slice((*byte)(unsafe.Add(from[q.src], int(q.start)*width)), int(q.n)*width))
		}
	}
	return body
}
