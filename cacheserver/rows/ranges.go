// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package rows

import "slices"

const (
	// ReadBytes is the cost of one more read from a backing, in bytes that are read meanwhile.
	ReadBytes = 64 << 10
	// runBytes is the estimated cost of a run that is read alone, besides its rows: a read, and what is read around the run to verify it.
	runBytes = ReadBytes * 5 / 4
	// listsShare bounds the bitmaps and offsets of a chunk that stay in the Go heap after the first read: a 1,024th of the chunk's length.
	listsShare = 1 << 10
)

// Range is the bytes [From, To) of a chunk's memory.
type Range struct{ From, To int64 }

// read fills the frame's memory, in which the slab s lies, from the backing of the current chunk. It reads only the rows of groups, after the bitmaps
// and offsets that locate them, if that costs less than reading the whole chunk.
func (f *Frame) read(s *slab, groups [][]Run32) error {
	c, p, l := f.chunk, f.copier, f.rows.layout
	memory := f.memory[:len(c.memory)]
	runs, rows := int64(0), p.choose(groups...)
	for _, group := range groups {
		runs += int64(len(group))
	}
	if runs == 0 || runs*f.perRun+rows*(int64(len(memory))/c.rows) >= int64(len(memory)) {
		return c.backing.ReadChunk(c.number, memory)
	}
	if err := c.readLists(memory, s.lists(l)); err != nil {
		return err
	}
	p.measure(l.nodes, 0)
	_, err := c.backing.ReadRanges(c.number, memory, p.values(l, s))
	return err
}

// readLists reads the ranges of slab.lists. If they are short, later calls copy them from the Go heap.
func (c *Chunk) readLists(memory []byte, ranges []Range) error {
	if have := c.lists.Load(); have != nil {
		for at := 0; len(ranges) > 0; ranges = ranges[1:] {
			at += copy(memory[ranges[0].From:ranges[0].To], (*have)[at:])
		}
		return nil
	}
	total := int64(0)
	for _, r := range ranges {
		total += r.To - r.From
	}
	_, err := c.backing.ReadRanges(c.number, memory, slices.Clone(ranges))
	if err != nil || total > int64(len(memory))/listsShare {
		return err
	}
	lists := make([]byte, 0, total)
	for _, r := range ranges {
		lists = append(lists, memory[r.From:r.To]...)
	}
	c.lists.Store(&lists)
	return nil
}

// choose resets the copier to rows of its only source, and returns their number.
func (p *copier) choose(groups ...[]Run32) (rows int64) {
	p.reset()
	for _, runs := range groups {
		for _, q := range runs {
			p.rows = append(p.rows, piece{start: int64(q.First), n: int32(q.Rows)})
			rows += int64(q.Rows)
		}
	}
	return rows
}

// lists returns the ranges of a slab's bitmaps and offsets. They are needed to locate the values of a row.
func (s *slab) lists(l *Layout) (ranges []Range) {
	add := func(buf int) {
		if sp := s.spans[buf]; sp.length > 0 {
			ranges = append(ranges, Range{sp.offset, sp.offset + sp.length})
		}
	}
	for _, n := range l.nodes {
		if n.kind != kindNull {
			add(n.buf)
		}
		if n.kind == kindBool || n.kind == kindVar || n.kind == kindList {
			add(n.buf + 1)
		}
	}
	return ranges
}

// values returns the ranges of a slab that have the values of the measured rows.
func (p *copier) values(l *Layout, s *slab) (ranges []Range) {
	add := func(buf int, ps []piece, width int64) {
		first := s.spans[buf].offset
		for _, q := range ps {
			if q.n > 0 && width > 0 {
				ranges = append(ranges, Range{first + q.start*width, first + (q.start+int64(q.n))*width})
			}
		}
	}
	for _, n := range l.nodes {
		switch {
		case n.kind == kindVar:
			add(n.buf+2, p.items[n.id], 1)
		case n.kind == kindFixed && !n.formed():
			add(n.buf+1, p.of[n.id], int64(n.width))
		case n.kind == kindFixed && (n.strip == nil || n == n.strip.nodes[0]):
			add(n.buf+1, p.of[n.id], int64(s.forms[n.id].stride))
		}
	}
	return ranges
}
