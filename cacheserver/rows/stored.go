// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"context"
	"fmt"
	"slices"
	"unsafe"

	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/internal/words"
)

// Backing stores the memory of chunks. It is safe for concurrent use.
type Backing interface {
	// ReadChunk fills memory, which begins and ends at multiples of PageSize, with that of a chunk. What it returns without an error
	// are the bytes that the chunk had when it was stored.
	ReadChunk(number int, memory []byte) error
	// ReadRanges is ReadChunk for parts of the memory; the content of the rest is undefined. The ranges may be in any order, and are sorted in place.
	// It returns the number of bytes read.
	ReadRanges(number int, memory []byte, ranges []Range) (read int64, err error)
}

// Store says that the chunk's memory is also in a backing. From now on it may be dropped when others need room, unless it is held. The
// arena must be Paged.
func (c *Chunk) Store(b Backing, number int) {
	c.spans, c.forms = slices.Clone(c.spans), slices.Clone(c.forms)
	c.backing, c.number = b, number
	c.stored = c.arena.Region(c.memory, readChunk(b, number))
}

// Free drops the chunk's memory now, if it is stored and nobody holds it.
func (c *Chunk) Free() {
	if c.stored != nil {
		c.stored.Free()
	}
}

// Memory is what a backing stores of the chunk: its length is a multiple of PageSize if the arena is Paged.
func (c *Chunk) Memory() []byte { return c.memory }

// Form returns, as bytes, what Attach needs to make the chunk again besides its memory.
func (c *Chunk) Form() []byte { return slices.Concat(bytesOf(c.spans), bytesOf(c.forms)) }

// Stub is a chunk without its memory.
type Stub struct {
	Rows   int64
	Body   int64  // bytes
	Memory int64  // bytes, a multiple of PageSize
	Form   []byte // see Chunk.Form
}

// Stub describes the chunk for Attach.
func (c *Chunk) Stub() Stub {
	return Stub{Rows: c.rows, Body: int64(len(c.body)), Memory: int64(len(c.memory)), Form: c.Form()}
}

// Attach makes a chunk again whose memory is in a backing. It reserves nothing until the chunk is read. The arena must be Paged.
func (l *Layout) Attach(a *offheap.Arena, s Stub, b Backing, number int) (*Chunk, error) {
	if err := l.fits(s, number); err != nil {
		return nil, err
	}
	region, memory, err := a.NewRegion(s.Memory, readChunk(b, number))
	if err != nil {
		return nil, err
	}
	c := l.of(a, s, memory)
	c.backing, c.number, c.stored = b, number, region
	return c, nil
}

// Load is Attach for a chunk that is read at once, and stays in memory.
func (l *Layout) Load(a *offheap.Arena, s Stub, b Backing, number int) (*Chunk, error) {
	if err := l.fits(s, number); err != nil {
		return nil, err
	}
	memory, err := a.Alloc(s.Memory)
	if err != nil {
		return nil, err
	}
	if err := b.ReadChunk(number, memory); err != nil {
		a.Discard(memory)
		return nil, err
	}
	return l.of(a, s, memory), nil
}

// fits returns an error for a chunk of another layout.
func (l *Layout) fits(s Stub, number int) error {
	spans, forms := l.buffers*int(unsafe.Sizeof(span{})), len(l.nodes)*int(unsafe.Sizeof(form{}))
	if len(s.Form) != spans+forms || s.Body < 0 || s.Memory < slabSize(l, s.Body) || s.Memory%offheap.PageSize != 0 || s.Rows < 1 {
		return fmt.Errorf("chunk %d of %s with %d bytes about its columns: it is of another layout", number, words.ExactBytes(s.Memory), len(s.Form))
	}
	return nil
}

// of makes the chunk of a stub in its memory.
func (l *Layout) of(a *offheap.Arena, s Stub, memory []byte) *Chunk {
	c := &Chunk{layout: l, arena: a, memory: memory}
	c.slab = slab{rows: s.Rows, body: memory[:s.Body:s.Body], spans: make([]span, l.buffers), forms: make([]form, len(l.nodes))}
	copy(bytesOf(c.forms), s.Form[copy(bytesOf(c.spans), s.Form):])
	return c
}

// readChunk returns what fills memory with that of a chunk in a backing.
func readChunk(b Backing, number int) func([]byte) error {
	return func(memory []byte) error { return b.ReadChunk(number, memory) }
}

// hold keeps the chunk's memory until drop; if it was dropped before, hold reads it.
func (c *Chunk) hold() error {
	if c.stored == nil {
		return nil
	}
	return c.stored.Hold()
}

// drop ends a hold.
func (c *Chunk) drop() {
	if c.stored != nil {
		c.stored.Drop()
	}
}

// held are the chunks that a gather, and then its message, hold.
type held []*Chunk

// add holds the chunks of pieces.
func (h *held) add(r *Rows, pieces []piece) error {
	if !r.stored {
		return nil
	}
	last := int32(-1)
	for i := range pieces {
		if pieces[i].src == last {
			continue
		}
		last = pieces[i].src
		if c := r.chunks[last]; c.stored != nil && !c.stored.IsPinned() && !slices.Contains(*h, c) {
			if err := c.hold(); err != nil {
				return err
			}
			*h = append(*h, c)
		}
	}
	return nil
}

// drop ends the holds.
func (h *held) drop() {
	for _, c := range *h {
		c.drop()
	}
	*h = (*h)[:0]
}

// Stored is how much of the rows is where.
type Stored struct {
	Bytes    int64 // of chunks that are in a backing
	Resident int64 // of these, bytes in memory
	Pinned   int64 // of these, bytes that stay in memory
}

// Stored returns how much of the rows is where.
func (r *Rows) Stored() (s Stored) {
	for _, c := range r.chunks {
		if c.stored == nil {
			continue
		}
		size := int64(len(c.memory))
		s.Bytes += size
		if c.stored.IsResident() {
			s.Resident += size
		}
	}
	s.Pinned = r.pinned.Load()
	return s
}

// Chunks are the chunks of rows, one by one. They are valid while the rows are.
type Chunks struct{ rows *Rows }

// Chunks returns the chunks of the rows.
func (r *Rows) Chunks() Chunks { return Chunks{r} }

// Pin keeps chunks in memory, as many as fit in a number of bytes, until the rows are released: first those that are there, then others, which it
// reads. It must be called once, by a caller that holds a reference; it ends early with ctx.
func (s Chunks) Pin(ctx context.Context, most int64) error {
	for _, read := range []bool{false, true} {
		for _, c := range s.rows.chunks {
			size := int64(len(c.memory))
			if c.stored == nil || s.rows.pinned.Load()+size > most || c.stored.IsResident() == read {
				continue
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err := c.hold(); err != nil {
				return err
			}
			c.stored.Pin()
			s.rows.pinned.Add(size)
		}
	}
	return nil
}

// Pinned is the number of bytes that Pin keeps in memory.
func (s Chunks) Pinned() int64 { return s.rows.pinned.Load() }

// At returns a chunk, and whether it stays in memory.
func (s Chunks) At(i int) (c *Chunk, stays bool) {
	c = s.rows.chunks[i]
	return c, c.stored == nil || c.stored.IsPinned()
}

// Len is the number of chunks.
func (s Chunks) Len() int { return len(s.rows.chunks) }

// Find returns the chunk of a row, and the rows [lo, hi) that it contains.
func (s Chunks) Find(row int64) (chunk int, lo, hi int64) {
	chunk = s.rows.find(row)
	return chunk, s.rows.starts[chunk], s.rows.starts[chunk+1]
}

// IsStored reports whether chunks may be in a backing only.
func (r *Rows) IsStored() bool { return r.stored }

// Prefetch reads a chunk, unless it is in memory. Others may then evict it. If it fails, so does the message that needs the chunk.
func (s Chunks) Prefetch(chunk int) {
	if !s.rows.Retain() {
		return
	}
	defer s.rows.Release()
	if c := s.rows.chunks[chunk]; c.hold() == nil {
		c.drop()
	}
}

// Largest is the memory of the largest chunk.
func (s Chunks) Largest() (most int64) {
	for _, c := range s.rows.chunks {
		most = max(most, int64(len(c.memory)))
	}
	return most
}

// Layout is the layout of the rows.
func (r *Rows) Layout() *Layout { return r.layout }
