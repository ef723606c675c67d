// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"fmt"
	"iter"
	"math/bits"
	"slices"
	"sort"
	"sync"
	"sync/atomic"

	"github.com/kubeflow/datacache/cacheserver/offheap"
)

// Rows is a sequence of chunks: a node's rows by local index, 0 to Len()-1. It is safe for concurrent use.
//
// It starts with one reference, the caller's, and holds one on each arena that contains its chunks. A message that points into an
// arena holds a reference on the Rows.
type Rows struct {
	layout  *Layout
	chunks  []*Chunk
	starts  []int64 // first row of each chunk, then the number of rows
	bytes   int64
	sent    int64   // bytes of the rows in messages
	columns []int64 // the same by column
	values  []int64 // by node: the number of its values, if they are integers
	fits    []byte  // see Fits
	arenas  []*offheap.Arena
	forms   formTable
	refs    atomic.Int64
	stored  bool         // some chunks may be in a backing only
	pinned  atomic.Int64 // bytes, see Pin
	finally func()

	stride    uint    // log2 of the number of rows that share an entry of directory
	directory []int32 // the chunks that contain rows 0, 1<<stride, 2<<stride, ...

	pool    pool
	copiers sync.Pool // of *gatherer

	mu      sync.RWMutex
	buffers []sourceBuffers // by node; filled in per column at its first use
	ready   []bool          // by column of projections
}

// NewRows makes the sequence of the chunks, all of the layout l. It retains their arenas; Release releases them.
func NewRows(l *Layout, chunks []*Chunk) (*Rows, error) {
	r := &Rows{layout: l, chunks: slices.Clone(chunks), starts: make([]int64, 1, len(chunks)+1)}
	r.refs.Store(1)
	r.buffers, r.ready = make([]sourceBuffers, l.ids()), make([]bool, 2*len(l.columns))
	r.columns, r.values = make([]int64, len(l.columns)), make([]int64, len(l.nodes))
	held := map[*offheap.Arena]bool{}
	for i, c := range chunks {
		if !l.equal(c.layout) {
			r.Release()
			return nil, fmt.Errorf("chunk %d has schema %v: want %v", i, c.layout.schema, l.schema)
		}
		if !held[c.arena] {
			if !c.arena.Retain() {
				r.Release()
				return nil, fmt.Errorf("chunk %d: %w", i, offheap.ErrReleased)
			}
			held[c.arena] = true
			r.arenas = append(r.arenas, c.arena)
		}
		r.bytes += c.Bytes()
		r.stored = r.stored || c.stored != nil
		r.countColumns(c)
		r.starts = append(r.starts, r.starts[i]+c.rows)
	}
	r.index()
	r.addForms()
	r.addFits()
	return r, nil
}

// Len is the number of rows.
func (r *Rows) Len() int64 { return r.starts[len(r.chunks)] }

// Bytes is the total length of the chunks' bodies.
func (r *Rows) Bytes() int64 { return r.bytes }

// Retain adds a reference, unless the last one has been released already; then it returns false.
func (r *Rows) Retain() bool { return offheap.Retain(&r.refs) }

// Release drops a reference. The last one releases the arenas.
func (r *Rows) Release() {
	if r.refs.Add(-1) != 0 {
		return
	}
	for _, a := range r.arenas {
		a.Release()
	}
	if r.finally != nil {
		r.finally()
	}
}

// Finally has f called after the last release. It must be called before the rows are shared.
func (r *Rows) Finally(f func()) { r.finally = f }

// index builds the directory, with 16 to 32 entries per chunk, so that few entries span two chunks.
func (r *Rows) index() {
	if len(r.chunks) == 0 {
		return
	}
	perEntry := max(1, r.Len()/int64(16*len(r.chunks)))
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

// find returns the index of the chunk that contains a row.
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

// usualBytes is the approximate length of a message of Range, unless its allowance is smaller. At this length, rows unpacked from
// strips are still in the L2 cache when the transport copies them; and a client's glibc would get memory for longer messages from the
// kernel each time, page fault by page fault.
const usualBytes = 1 << 20

// Range yields rows [lo, hi) as messages of about 1 MiB, each with rows of a single chunk. Messages refer to long values in the arena
// and copy the others. The consumer releases each message. The first error ends the sequence.
func (r *Rows) Range(p *Projection, lo, hi int64) iter.Seq2[Message, error] {
	return func(yield func(Message, error) bool) {
		if lo < 0 || lo > hi || hi > r.Len() {
			yield(Message{}, fmt.Errorf("rows [%d, %d): there are rows [0, %d)", lo, hi, r.Len()))
			return
		}
		mean := r.MeanBytes(p)
		for lo < hi {
			m, err := r.next(p, lo, hi, mean)
			if !yield(m, err) || err != nil {
				return
			}
			lo += int64(m.Rows)
		}
	}
}

// next makes a message of rows from lo on that are in one chunk, with rows of mean bytes. The chunk's remaining rows are divided into
// messages of equal size.
func (r *Rows) next(p *Projection, lo, hi, mean int64) (Message, error) {
	if err := r.enter(p); err != nil {
		return Message{}, err
	}
	c := r.find(lo)
	n := min(hi, r.starts[c+1]) - lo
	size := p.messageBytes()
	messages := max(1, (n*mean+size/2)/size)
	g := r.gatherer(p)
	defer r.done(g)
	g.rows = append(g.rows, piece{start: lo - r.starts[c], n: int32((n + messages - 1) / messages), src: int32(c)})
	if err := g.held.add(r, g.rows); err != nil {
		r.Release()
		return Message{}, err
	}
	g.measure(p.nodes, 0)
	return r.message(p, g, int(g.rows[0].n))
}

// enter retains r for a call with p.
func (r *Rows) enter(p *Projection) error {
	if !p.layout.equal(r.layout) {
		return fmt.Errorf("projection is of schema %v: the rows have %v", p.layout.schema, r.layout.schema)
	}
	if !r.Retain() {
		return offheap.ErrReleased
	}
	return nil
}
