// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"sync/atomic"
	"unsafe"

	"github.com/kubeflow/datacache/cacheserver/offheap"
)

// align is the alignment of every body and buffer, as the Arrow IPC format recommends.
const align = 64

// padded rounds n up to a multiple of align.
func padded(n int64) int64 {
	return (n + align - 1) &^ (align - 1)
}

// slab is rows laid out in one block of memory: the buffers of an IPC body, with strips in place of the values of the columns that
// belong to strips, and with integers in the bytes that forms gives.
type slab struct {
	rows  int64
	body  []byte
	spans []span // by buffer of the layout; for values in a strip: the offset of the first one and their size
	forms []form // by node of the layout
}

// newSlab makes a slab in memory, which has slabSize bytes.
func newSlab(l *Layout, memory []byte, rows, bodyLength int64) slab {
	spans := memory[bodyLength:]
	forms := spans[l.buffers*int(unsafe.Sizeof(span{})):]
	return slab{
		rows: rows, body: memory[:bodyLength:bodyLength],
		spans: structsOf[span](spans, l.buffers), forms: structsOf[form](forms, len(l.nodes)),
	}
}

// slabSize is the size of a body, its spans and its forms.
func slabSize(l *Layout, bodyLength int64) int64 {
	return bodyLength + padded(int64(l.buffers)*int64(unsafe.Sizeof(span{}))+int64(len(l.nodes))*int64(unsafe.Sizeof(form{})))
}

// Overhead is about the memory that a chunk takes besides its rows.
func (l *Layout) Overhead() int64 { return slabSize(l, 0) + align/2*int64(l.buffers) }

// at returns the start of a buffer; nil if it is empty.
func (s *slab) at(buf int) unsafe.Pointer {
	sp := s.spans[buf]
	if sp.length == 0 {
		return nil
	}
	return unsafe.Pointer(&s.body[sp.offset])
}

// Chunk holds some rows of a layout in an arena. It is immutable, and valid as long as the arena exists.
type Chunk struct {
	slab
	layout *Layout
	arena  *offheap.Arena
	memory []byte          // of the slab
	stored *offheap.Region // nil: it is in memory only

	// Where the chunk is stored, if stored is set.
	backing Backing
	number  int
	lists   atomic.Pointer[[]byte] // copy of the ranges of slab.lists, concatenated; nil: there is none
}

// Rows is the number of rows, at least 1.
func (c *Chunk) Rows() int { return int(c.rows) }

// Bytes is the length of the body, padding included.
func (c *Chunk) Bytes() int64 { return int64(len(c.body)) }
