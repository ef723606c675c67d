// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/zeebo/xxh3"

	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/cacheserver/rows/bitmap"
)

// TargetBytes is the default length of a chunk's body, in bytes.
const TargetBytes = 4 << 20

const (
	maxTarget  = 128 << 20 // keeps every array below 2^31 slots, even of one bit each
	maxSources = 64        // number of small batches that a builder retains before it copies them together
)

// Sealed is the result of a builder. The chunks are valid as long as the arena exists.
type Sealed struct {
	Chunks []*Chunk
	Rows   int64
	Bytes  int64    // of bodies
	Hash   [16]byte // XXH3-128 of the chunks' row and null counts, spans of buffers, forms of values, and bodies
}

// Builder lays out record batches as chunks of about the target size, at least one row each. The same rows in the same batches yield
// the same bytes. It is not safe for concurrent use; builders may share an arena.
//
// It buffers at most one chunk of rows that are not sealed yet. After an error it can't be used any more.
type Builder struct {
	layout *Layout
	arena  *offheap.Arena
	target int64 // raw size, see rawRows

	sources []source
	buffers []sourceBuffers
	raw     int64 // raw size of the sources
	slabs   int   // leading sources that are slabs

	seen   *arrow.Schema // the last schema that matched
	copier *copier
	hash   []byte // digests of the chunks' contents
	sealed Sealed
	each   func(number int, c *Chunk) error // called with every chunk; nil: none
	err    error
}

// source is a batch or slab with rows that are not sealed yet.
type source struct {
	release func() // nil for a slab
	next    int64  // the first row that is not sealed
	rows    int64
	keep    []byte // a bit per row: rows whose bit is unset are dropped; nil keeps all rows
	raw     int64  // raw size of the kept rows in [next, rows)
}

// NewBuilder returns a builder that fills the arena with chunks whose bodies have about targetBytes; 0 means [TargetBytes], the
// maximum is 128 MiB.
func NewBuilder(l *Layout, a *offheap.Arena, targetBytes int) *Builder {
	if targetBytes <= 0 {
		targetBytes = TargetBytes
	}
	b := &Builder{layout: l, arena: a, target: 8 * int64(min(targetBytes, maxTarget))}
	b.buffers = make([]sourceBuffers, len(l.nodes))
	b.copier = newCopier(l)
	b.copier.buffers, b.copier.exact = b.buffers, true
	return b
}

// Each makes the builder call a function with every chunk that it seals, in order. If the function fails, so do Append and Finish.
func (b *Builder) Each(call func(number int, c *Chunk) error) { b.each = call }

// Append adds the rows of a batch, of any size and sliced or not, whose bits in keep (least significant bit first) are set; nil keeps
// all rows. The batch's columns match the layout's in order. The other rows are dropped when the batch is copied into a chunk. The Builder
// retains the batch as long as it needs it, during which keep must not change. If the budget is exhausted, the error is an
// *[ExhaustedError].
func (b *Builder) Append(batch arrow.RecordBatch, keep []byte) error {
	if b.err != nil {
		return b.err
	}
	rows := batch.NumRows()
	if keep != nil && int64(len(keep)) < (rows+7)/8 {
		return fmt.Errorf("%d bytes of bits for %d rows", len(keep), rows)
	}
	if rows == 0 || keep != nil && bitmap.Ones(unsafe.Pointer(unsafe.SliceData(keep)), 0, int(rows)) == 0 {
		return nil
	}
	if err := b.append(batch, keep); err != nil {
		b.Close()
		b.err = err
	}
	return b.err
}

// Finish seals the remaining rows and returns all chunks. The builder can't be used afterwards.
func (b *Builder) Finish() (Sealed, error) {
	if b.err != nil {
		return Sealed{}, b.err
	}
	defer b.Close()
	if err := b.seal(); err != nil {
		return Sealed{}, err
	}
	b.arena.Trim()
	b.sealed.Hash = xxh3.Hash128(b.hash).Bytes()
	return b.sealed, nil
}

// Reserved is the number of bytes that the chunks take in the arena, without those that may be dropped.
func (b *Builder) Reserved() int64 {
	var n int64
	for _, c := range b.sealed.Chunks {
		if c.stored == nil {
			n += int64(len(c.memory))
		}
	}
	return n
}

// Discard closes the builder and returns the memory of its chunks, which must not be used any more.
func (b *Builder) Discard() {
	b.Close()
	for _, c := range b.sealed.Chunks {
		if c.stored == nil {
			b.arena.Discard(c.memory)
		}
		c.Free()
	}
	b.sealed = Sealed{}
}

// Close releases the batches that are not sealed. It may be called at any time, more than once; the chunks belong to the arena and
// stay.
func (b *Builder) Close() {
	b.drop(0, len(b.sources))
	if b.err == nil {
		b.err = errors.New("rows: builder is closed")
	}
}

func (b *Builder) append(batch arrow.RecordBatch, keep []byte) error {
	if err := b.match(batch.Schema()); err != nil {
		return err
	}
	before, at := b.raw, len(b.sources)
	if err := b.add(batch, keep); err != nil {
		return err
	}
	switch {
	case b.raw <= b.target:
		return b.compact()
	case 2*before >= b.target:
		// The buffered rows fill a chunk well enough: seal them by themselves.
		if err := b.sealFirst(at); err != nil {
			return err
		}
		if b.raw <= b.target {
			return nil
		}
	}
	return b.seal()
}

func (b *Builder) match(s *arrow.Schema) error {
	if s == b.seen {
		return nil
	}
	if err := b.layout.match(s); err != nil {
		return fmt.Errorf("batch: %w", err)
	}
	b.seen = s
	return nil
}

// add checks a batch and appends it to the sources.
func (b *Builder) add(batch arrow.RecordBatch, keep []byte) error {
	rows := int(batch.NumRows())
	kept := make([]arrow.ArrayData, 0, batch.NumCols())
	release := func() {
		for _, d := range kept {
			d.Release()
		}
	}
	var c checker
	for i, col := range b.layout.columns {
		d, err := decoded(context.Background(), batch.Column(i).Data()) //nolint:forbidigo // used only for compute's allocator; nothing blocks
		if err != nil {
			release()
			return fmt.Errorf("column %q: decode dictionary: %w", col.root.path, err)
		}
		kept = append(kept, d)
		if err := b.check(&c, i, d, rows); err != nil {
			release()
			return err
		}
	}
	for i, col := range b.layout.columns {
		addArray(b.buffers, col.root, kept[i], 0, 0, rows)
	}
	s := source{release: release, rows: int64(rows), keep: keep}
	s.next = s.kept(0)
	b.push(s)
	if !c.dirty && !sparse(keep, rows) {
		return nil
	}
	b.copier.split = c.dirty
	defer func() { b.copier.split = false }()
	return b.merge(len(b.sources) - 1)
}

func (b *Builder) check(c *checker, column int, d arrow.ArrayData, rows int) error {
	root := b.layout.columns[column].root
	if err := c.check(root, d, 0, rows); err != nil {
		return err
	}
	if !b.layout.schema.Field(column).Nullable && hasNulls(root, d, d.Offset(), rows) {
		return fmt.Errorf("column %q is required, but a value is null: the rows break the schema", root.path)
	}
	return nil
}

// push appends s, whose buffers were added already, to the sources.
func (b *Builder) push(s source) {
	b.sources = append(b.sources, s)
	last := &b.sources[len(b.sources)-1]
	last.raw = b.rawKept(len(b.sources)-1, s.next, s.rows)
	b.raw += last.raw
}

// drop removes sources [lo, hi).
func (b *Builder) drop(lo, hi int) {
	for _, s := range b.sources[lo:hi] {
		b.raw -= s.raw
		if s.release != nil {
			s.release()
		}
	}
	b.sources = slices.Delete(b.sources, lo, hi)
	b.slabs -= max(0, min(hi, b.slabs)-lo)
	for i := range b.buffers {
		b.buffers[i].drop(lo, hi)
	}
}

// compact copies many small batches together, so that the memory they retain is not much more than their rows need.
func (b *Builder) compact() error {
	if len(b.sources)-b.slabs < maxSources {
		return nil
	}
	if b.slabs >= maxSources {
		b.slabs = 0
	}
	return b.merge(b.slabs)
}

// merge replaces the sources from index from on by copies of them in slabs on the heap.
func (b *Builder) merge(from int) error {
	var merged []slab
	for done := false; !done; {
		b.copier.reset()
		done = b.pick(from, b.target)
		s, err := b.build(func(n int64) ([]byte, error) { return make([]byte, n), nil })
		if err != nil {
			return err
		}
		merged = append(merged, s)
	}
	b.drop(from, len(b.sources))
	if b.slabs == from {
		b.slabs += len(merged)
	}
	for i := range merged {
		for _, c := range b.layout.columns {
			addSlab(b.buffers, c.root, &merged[i])
		}
		b.push(source{rows: merged[i].rows})
	}
	return nil
}

// Held is how many of the batches that were appended last, and have rows, the builder may still refer to.
func (b *Builder) Held() int { return len(b.sources) - b.slabs }

// Detach copies the rows that are not sealed, so that the memory of their batches, which may be larger, can be freed.
func (b *Builder) Detach() error {
	if b.err != nil || len(b.sources) == b.slabs {
		return b.err
	}
	b.err = b.merge(b.slabs)
	return b.err
}

// seal makes chunks of all sources, of nearly equal size and none above the target.
func (b *Builder) seal() error {
	for done := len(b.sources) == 0; !done; {
		want := b.raw
		if chunks := (b.raw + b.target - 1) / b.target; chunks > 1 {
			want = b.raw / chunks
		}
		b.copier.reset()
		done = b.pick(0, want)
		if err := b.emit(); err != nil {
			return err
		}
	}
	b.drop(0, len(b.sources))
	return nil
}

// sealFirst makes one chunk of the first n sources.
func (b *Builder) sealFirst(n int) error {
	b.copier.reset()
	for i := range b.sources[:n] {
		b.take(i, b.sources[i].rows)
	}
	if err := b.emit(); err != nil {
		return err
	}
	b.drop(0, n)
	return nil
}

// pick selects rows of the sources from index from on, at least one row and up to a raw size; done says that none are left.
func (b *Builder) pick(from int, want int64) (done bool) {
	taken := int64(0)
	for i := from; i < len(b.sources); i++ {
		s := &b.sources[i]
		if taken+s.raw <= want {
			taken += s.raw
			b.take(i, s.rows)
			continue
		}
		end := b.fit(i, want-taken)
		if taken == 0 && end == s.next {
			end++
		}
		b.take(i, end)
		return i == len(b.sources)-1 && s.next == s.rows
	}
	return true
}

// take selects the rows of a source up to end.
func (b *Builder) take(i int, end int64) {
	s := &b.sources[i]
	if s.next == end {
		return
	}
	for at, n := range s.runs(s.next, end) {
		b.copier.rows = append(b.copier.rows, piece{start: at, n: int32(n), src: int32(i)})
	}
	s.next = s.kept(end)
	left := b.rawKept(i, s.next, s.rows)
	b.raw -= s.raw - left
	s.raw = left
}

// emit makes a chunk of the rows that the copier has selected.
func (b *Builder) emit() error {
	var memory []byte
	b.copier.packed = true
	s, err := b.build(func(n int64) (_ []byte, err error) {
		memory, err = b.arena.Alloc(n)
		return memory, err
	})
	b.copier.packed = false
	if err != nil {
		return err
	}
	b.digest(bytesOf(b.copier.fields))
	b.digest(bytesOf(s.spans))
	b.digest(bytesOf(s.forms))
	b.digest(s.body)
	c := &Chunk{slab: s, layout: b.layout, arena: b.arena, memory: memory}
	b.sealed.Chunks = append(b.sealed.Chunks, c)
	b.sealed.Rows += s.rows
	b.sealed.Bytes += int64(len(s.body))
	if b.each == nil {
		return nil
	}
	return b.each(len(b.sealed.Chunks)-1, c)
}

// digest adds the hash of bytes to the hash: a hasher would copy the bytes first.
func (b *Builder) digest(bytes []byte) {
	sum := xxh3.Hash128(bytes).Bytes()
	b.hash = append(b.hash, sum[:]...)
}

// build measures the rows selected in the copier, allocates memory for them and fills it.
func (b *Builder) build(alloc func(int64) ([]byte, error)) (slab, error) {
	p, nodes := b.copier, b.layout.nodes
	rows, err := b.fits()
	if err != nil {
		return slab{}, err
	}
	p.measure(nodes, 0)
	p.chooseForms(b.layout)
	length, _ := p.bytes(nodes)
	memory, err := alloc(slabSize(b.layout, length))
	if err != nil {
		return slab{}, fmt.Errorf("chunk of %d rows: %w", rows, err)
	}
	s := newSlab(b.layout, memory, rows, length)
	p.place(nodes)
	p.fill(nodes, s.body)
	copy(s.spans, p.spans)
	copy(s.forms, p.forms)
	return s, nil
}
