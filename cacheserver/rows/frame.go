// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"fmt"

	"github.com/kubeflow/datacache/cacheserver/offheap"
)

// Frame is memory for one chunk after the other, from which rows are copied. Reading a chunk to it costs no new pages of memory, unlike a hold.
// It is not safe for concurrent use; its user closes it.
type Frame struct {
	rows   *Rows
	budget *offheap.Budget
	arena  *offheap.Arena
	memory []byte
	copier *copier
	chunk  *Chunk // the current one
	held   bool   // it is in memory anyway, and held
	perRun int64  // cost in bytes of a run that is read alone, besides its rows
}

// NewFrame returns a frame for the chunks of r, which it retains. Its memory is reserved in the budget.
func (r *Rows) NewFrame(budget *offheap.Budget) (*Frame, error) {
	if !r.Retain() {
		return nil, offheap.ErrReleased
	}
	f := &Frame{rows: r, budget: budget, copier: newCopier(r.layout), perRun: runBytes}
	f.copier.clean, f.copier.packed, f.copier.buffers = true, true, make([]sourceBuffers, r.layout.ids())
	return f, nil
}

// Load makes a chunk the frame's current one. Only the rows of groups may be cut from it then; without groups, all rows.
func (f *Frame) Load(chunk int, groups ...[]Run32) error {
	f.drop()
	c := f.rows.chunks[chunk]
	s := c.slab
	if f.held = c.holdResident(); !f.held {
		if err := f.grow(len(c.memory)); err != nil {
			return err
		}
		s.body = f.memory[:len(c.body)]
	}
	f.chunk = c
	clear(f.copier.buffers)
	for _, column := range f.rows.layout.columns {
		addSlab(f.copier.buffers, column.root, &s)
	}
	if f.held {
		return nil
	}
	return f.read(&s, groups)
}

// grow makes room for a chunk of n bytes.
func (f *Frame) grow(n int) (err error) {
	if n <= len(f.memory) {
		return nil
	}
	f.free()
	f.arena = offheap.NewArena(f.budget).Paged()
	f.memory, err = f.arena.Alloc(int64(n))
	return err
}

func (f *Frame) free() {
	if f.arena != nil {
		f.arena.Release()
	}
	f.arena, f.memory = nil, nil
}

func (f *Frame) drop() {
	if f.held {
		f.chunk.drop()
	}
	f.chunk, f.held = nil, false
}

// Close frees the frame.
func (f *Frame) Close() {
	f.drop()
	f.free()
	f.rows.Release()
}

// Run32 is a range of consecutive rows of a chunk.
type Run32 struct{ First, Rows uint32 }

// Cut copies rows of the current chunk to a new chunk in an arena. The rows must be among those that were given to Load.
func (f *Frame) Cut(a *offheap.Arena, runs []Run32) (*Chunk, error) {
	p, l := f.copier, f.rows.layout
	rows := p.choose(runs)
	p.measure(l.nodes, 0)
	copy(p.forms, f.chunk.forms)
	length, _ := p.bytes(l.nodes)
	memory, err := a.Alloc(slabSize(l, length))
	if err != nil {
		return nil, fmt.Errorf("%d rows of a chunk: %w", rows, err)
	}
	s := newSlab(l, memory, rows, length)
	p.place(l.nodes)
	p.fill(l.nodes, s.body)
	copy(s.spans, p.spans)
	copy(s.forms, p.forms)
	return &Chunk{slab: s, layout: l, arena: a, memory: memory}, nil
}

// holdResident holds the chunk if it is in memory.
func (c *Chunk) holdResident() bool {
	return c.stored == nil || c.stored.IsPinned() || c.stored.HoldResident()
}
