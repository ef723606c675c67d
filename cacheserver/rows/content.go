// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"encoding/binary"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/zeebo/xxh3"

	"github.com/kubeflow/datacache/cacheserver/rows/bitmap"
)

// Content hashes rows by their values: equal rows in equal order have equal hashes, whatever batches they come in and however they are stored.
// What null slots contain does not matter. It is not safe for concurrent use.
type Content struct {
	layout *Layout
	nodes  []nodeContent // by node
	rows   int64
}

// nodeContent hashes the slots of a node that are not within nulls.
type nodeContent struct {
	valid  runLengths  // whether slots are valid
	bits   runLengths  // values of kindBool
	values xxh3.Hasher // of kindFixed; data of kindVar
	sizes  xxh3.Hasher // of the items of lists, or bytes of values
}

// NewContent returns the content of no rows.
func (l *Layout) NewContent() *Content {
	return &Content{layout: l, nodes: make([]nodeContent, len(l.nodes))}
}

// IntakeMemory is about the memory of a Content and a Builder besides rows, which wide layouts make large.
func (l *Layout) IntakeMemory() int64 {
	const builder = 1 << 10 // of a node, measured
	return int64(len(l.nodes)) * (builder + int64(unsafe.Sizeof(nodeContent{})))
}

// Add adds the rows of a batch that the layout's Batch made.
func (c *Content) Add(batch arrow.RecordBatch) {
	for i := range c.layout.columns {
		c.add(c.layout.columns[i].root, batch.Column(i).Data(), 0, int(batch.NumRows()))
	}
	c.rows += batch.NumRows()
}

// Rows is the number of rows.
func (c *Content) Rows() int64 { return c.rows }

// Sum is the hash of the rows added so far; no more may be added.
func (c *Content) Sum() [16]byte {
	sums := binary.LittleEndian.AppendUint64(nil, uint64(c.rows))
	for i := range c.nodes {
		n := &c.nodes[i]
		n.valid.put(false, 0)
		n.bits.put(false, 0)
		for _, h := range []*xxh3.Hasher{&n.valid.hash, &n.bits.hash, &n.values, &n.sizes} {
			sum := h.Sum128().Bytes()
			sums = append(sums, sum[:]...)
		}
	}
	return xxh3.Hash128(sums).Bytes()
}

// add adds count slots of d, starting at slot from.
func (c *Content) add(n *node, d arrow.ArrayData, from, count int) {
	if n.kind == kindNull || count == 0 {
		return
	}
	at := from + d.Offset()
	if !hasNulls(n, d, at, count) {
		c.nodes[n.id].valid.put(true, count)
		c.addValid(n, d, at, count)
		return
	}
	bits := start(d, 0, 0)
	for end := at + count; at < end; {
		one, run := bitmap.Run(bits, int64(at), end-at)
		c.nodes[n.id].valid.put(one, run)
		if one {
			c.addValid(n, d, at, run)
		}
		at += run
	}
}

// addValid adds count valid slots, starting at position at of the buffers.
func (c *Content) addValid(n *node, d arrow.ArrayData, at, count int) {
	h := &c.nodes[n.id]
	switch n.kind {
	case kindBool:
		bits := start(d, 1, 0)
		for end := at + count; at < end; {
			one, run := bitmap.Run(bits, int64(at), end-at)
			h.bits.put(one, run)
			at += run
		}
	case kindFixed:
		_, _ = h.values.Write(buffer(d, 1)[at*n.width : (at+count)*n.width])
	case kindVar:
		h.addSizes(n, d, at, count)
		lo, hi := offsets(n, d, at, count)
		_, _ = h.values.Write(buffer(d, 2)[lo:hi])
	case kindList:
		h.addSizes(n, d, at, count)
		lo, hi := offsets(n, d, at, count)
		c.add(n.kids[0], d.Children()[0], int(lo), int(hi-lo))
	case kindFixedList:
		c.add(n.kids[0], d.Children()[0], at*n.width, count*n.width)
	case kindStruct:
		for i, kid := range n.kids {
			c.add(kid, d.Children()[i], at, count)
		}
	}
}

// addSizes adds the lengths of count lists or values.
func (h *nodeContent) addSizes(n *node, d arrow.ArrayData, at, count int) {
	if n.width == 4 {
		hashSizes(&h.sizes, unsafe.Slice((*int32)(start(d, 1, at*4)), count+1))
		return
	}
	hashSizes(&h.sizes, unsafe.Slice((*int64)(start(d, 1, at*8)), count+1))
}

// hashSizes writes the differences of offsets, as 32 bits each: no value of a chunk is longer.
func hashSizes[O int32 | int64](h *xxh3.Hasher, offsets []O) {
	var block [256]uint32
	for len(offsets) > 1 {
		n := min(len(block), len(offsets)-1)
		for i := range n {
			block[i] = uint32(offsets[i+1] - offsets[i])
		}
		_, _ = h.Write(unsafe.Slice((*byte)(unsafe.Pointer(&block)), 4*n))
		offsets = offsets[n:]
	}
}

// runLengths hashes a sequence of bits by the lengths of its runs, the first of which is of ones and may be empty.
type runLengths struct {
	hash xxh3.Hasher
	zero bool // value of the current run is 0
	run  uint64
}

// put adds n equal bits; put(false, 0) ends the current run.
func (r *runLengths) put(one bool, n int) {
	if one != r.zero && n > 0 {
		r.run += uint64(n)
		return
	}
	var length [8]byte
	binary.LittleEndian.PutUint64(length[:], r.run)
	_, _ = r.hash.Write(length[:])
	r.zero, r.run = !r.zero, uint64(n)
}
