// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package chunk

import (
	"fmt"
	"iter"
	"math/bits"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
)

// Rows is chunks strung together: a node's rows by local index, 0 to Len()-1. Safe for concurrent use.
//
// It starts with one reference, the caller's, and holds one on each arena that its chunks lie in. A message
// that points into an arena holds a reference on the Rows.
type Rows struct {
	layout *Layout
	chunks []*Chunk
	starts []int64 // of each chunk, and the end
	bytes  int64
	arenas []*Arena
	refs   atomic.Int64

	stride    uint    // log2 of the rows that share an entry of directory
	directory []int32 // the chunk of rows 0, 1<<stride, 2<<stride, ...

	pool  pool
	plans sync.Pool // of *plan

	mu    sync.RWMutex
	lanes []lane // by node; filled in by column at first use
	ready []bool // by column
}

// NewRows strings chunks of a layout together in the order given. It retains their arenas: Release gives them
// back.
func NewRows(l *Layout, chunks []*Chunk) (*Rows, error) {
	r := &Rows{layout: l, chunks: slices.Clone(chunks), starts: make([]int64, 1, len(chunks)+1)}
	r.refs.Store(1)
	r.lanes, r.ready = make([]lane, len(l.nodes)), make([]bool, len(l.columns))
	held := map[*Arena]bool{}
	for i, c := range chunks {
		if !l.equal(c.layout) {
			r.Release()
			return nil, fmt.Errorf("chunk %d has schema %v: want %v", i, c.layout.schema, l.schema)
		}
		if !held[c.arena] {
			if !c.arena.Retain() {
				r.Release()
				return nil, fmt.Errorf("chunk %d: %w", i, ErrReleased)
			}
			held[c.arena] = true
			r.arenas = append(r.arenas, c.arena)
		}
		r.bytes += c.Bytes()
		r.starts = append(r.starts, r.starts[i]+c.rows)
	}
	r.index()
	return r, nil
}

// Len is the number of rows.
func (r *Rows) Len() int64 { return r.starts[len(r.chunks)] }

// Bytes is the length of the chunks' bodies.
func (r *Rows) Bytes() int64 { return r.bytes }

// Retain adds a reference. It reports false, and adds none, when the last one is gone already.
func (r *Rows) Retain() bool { return retain(&r.refs) }

// Release drops a reference. With the last one the arenas are released.
func (r *Rows) Release() {
	if r.refs.Add(-1) != 0 {
		return
	}
	for _, a := range r.arenas {
		a.Release()
	}
}

// index makes the directory: about four entries a chunk.
func (r *Rows) index() {
	if len(r.chunks) == 0 {
		return
	}
	perEntry := max(1, r.Len()/int64(4*len(r.chunks)))
	r.stride = uint(bits.Len64(uint64(perEntry)) - 1)
	entries := int(((r.Len() - 1) >> r.stride) + 2)
	r.directory = make([]int32, entries)
	c := 0
	for e := range r.directory {
		for c < len(r.chunks)-1 && r.starts[c+1] <= int64(e)<<r.stride {
			c++
		}
		r.directory[e] = int32(c)
	}
}

// find is the chunk that holds a row.
func (r *Rows) find(row int64) int {
	e := row >> r.stride
	lo, hi := int(r.directory[e]), int(r.directory[e+1])
	if hi-lo > 8 {
		return lo + sort.Search(hi-lo, func(i int) bool { return r.starts[lo+i+1] > row })
	}
	for r.starts[lo+1] <= row {
		lo++
	}
	return lo
}

// Range yields rows [lo, hi) as messages: whole chunks as they lie in the arena, what is cut off at the two
// edges as a copy. The consumer releases each message. The first error ends the sequence.
func (r *Rows) Range(p *Projection, lo, hi int64) iter.Seq2[Message, error] {
	return func(yield func(Message, error) bool) {
		if lo < 0 || lo > hi || hi > r.Len() {
			yield(Message{}, fmt.Errorf("rows [%d, %d): there are rows [0, %d)", lo, hi, r.Len()))
			return
		}
		for lo < hi {
			m, err := r.next(p, lo, hi)
			if !yield(m, err) || err != nil {
				return
			}
			lo += int64(m.Rows)
		}
	}
}

// next is the message of the rows from lo on that lie in one chunk.
func (r *Rows) next(p *Projection, lo, hi int64) (Message, error) {
	c := r.find(lo)
	n := min(hi, r.starts[c+1]) - lo
	if err := r.enter(p); err != nil {
		return Message{}, err
	}
	if n == r.chunks[c].rows {
		return r.whole(p, r.chunks[c]), nil
	}
	defer r.Release()
	g := r.gatherer(p)
	defer r.done(g)
	g.rows = append(g.rows, piece{start: lo - r.starts[c], n: int32(n), src: int32(c)})
	g.measure(p.nodes, 0)
	length, _ := g.bytes(p.nodes)
	return r.copyOut(p, g, int(n), int(length)), nil
}

// enter retains r for a call with p.
func (r *Rows) enter(p *Projection) error {
	if !p.layout.equal(r.layout) {
		return fmt.Errorf("projection is of schema %v: the rows have %v", p.layout.schema, r.layout.schema)
	}
	if !r.Retain() {
		return ErrReleased
	}
	return nil
}

// whole is the message of a chunk, which takes over a reference on r.
func (r *Rows) whole(p *Projection, c *Chunk) Message {
	m := Message{Rows: int(c.rows), lease: &lease{rows: r}}
	if p.whole() {
		m.Header, m.BodyLen = c.header, len(c.body)
		if len(c.body) > 0 {
			m.Body = [][]byte{c.body}
		}
		return m
	}
	m.Body = make([][]byte, 0, len(p.runs))
	for _, run := range p.runs {
		from, to := c.extent(p.layout, run[0], run[1])
		if from < to {
			m.Body = append(m.Body, c.body[from:to:to])
		}
		m.BodyLen += int(to - from)
	}
	m.Header = make([]byte, p.headers.size())
	nodes, spans := p.headers.begin(m.Header, c.rows, int64(m.BodyLen))
	end := int64(0)
	for _, i := range p.columns {
		col := p.layout.columns[i]
		nodes = nodes[copy(nodes, c.nodes[col.nodes[0]:col.nodes[1]]):]
		from, to := c.extent(p.layout, i, i+1)
		for k, s := range c.spans[col.buffers[0]:col.buffers[1]] {
			spans[k] = span{offset: s.offset - from + end, length: s.length}
		}
		spans = spans[col.buffers[1]-col.buffers[0]:]
		end += to - from
	}
	return m
}
