// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package chunk

import "unsafe"

// slab is rows laid out as one IPC body.
type slab struct {
	rows   int64
	body   []byte
	nodes  []fieldNode // by node of the layout
	spans  []span      // by buffer of the layout
	header []byte      // the IPC message of every column; nodes and spans lie in it
}

// newSlab carves a slab out of memory of slabSize bytes.
func newSlab(l *Layout, memory []byte, rows, bodyLength int64) slab {
	h := &l.all.headers
	s := slab{rows: rows, body: memory[:bodyLength:bodyLength]}
	s.header = memory[bodyLength:][:h.size():h.size()]
	s.nodes, s.spans = h.begin(s.header, rows, bodyLength)
	return s
}

// slabSize is what a body and its header take.
func slabSize(l *Layout, bodyLength int64) int64 {
	return bodyLength + padded(int64(l.all.headers.size()))
}

// at is where a buffer starts; nil when it is empty.
func (s *slab) at(buf int) unsafe.Pointer {
	sp := s.spans[buf]
	if sp.length == 0 {
		return nil
	}
	return unsafe.Pointer(&s.body[sp.offset])
}

// extent is the range of the body that holds columns [lo, hi).
func (s *slab) extent(l *Layout, lo, hi int) (from, to int64) {
	start := func(c int) int64 {
		if c == len(l.columns) || l.columns[c].buffers[0] == len(s.spans) {
			return int64(len(s.body))
		}
		return s.spans[l.columns[c].buffers[0]].offset
	}
	return start(lo), start(hi)
}

// Chunk is some rows of a layout as one IPC body in an arena. Immutable; valid as long as the arena lives.
type Chunk struct {
	slab
	layout *Layout
	arena  *Arena
}

// Rows is the number of rows, at least 1.
func (c *Chunk) Rows() int { return int(c.rows) }

// Bytes is the length of the body, padding included.
func (c *Chunk) Bytes() int64 { return int64(len(c.body)) }
