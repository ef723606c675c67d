// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package load

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/ipc"

	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/cacheserver/rows"
	"github.com/kubeflow/datacache/cacheserver/source"
	"github.com/kubeflow/datacache/cacheserver/spill"
)

// restore takes over the splits whose files an earlier process left, without opening the dataset: the files have the schema too. It sets the layout if
// there is any. A file that is broken or of another release is as if it were missing.
func (l *load) restore() {
	if l.Spill == nil {
		return
	}
	var schema []byte
	for i := range l.splits {
		file, err := l.Spill.Open(l.spec.Plan, l.spec.First+i)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil && l.layout == nil {
			schema = file.Head().Schema
			l.layout, err = layoutOf(schema)
		}
		if err == nil && !bytes.Equal(file.Head().Schema, schema) {
			err = errors.New("it has another schema than the first file")
		}
		var sealed rows.Sealed
		if err == nil {
			b := &backing{load: l, index: i, file: file}
			sealed, err = file.Attach(l.layout, l.arena, b)
			l.backings[i] = b
		}
		if err != nil {
			l.Log.Warn("a split is loaded again: its spill file can't be used", "split", l.spec.First+i, "reason", err)
			l.backings[i] = nil
			if file != nil {
				_ = file.Close(false) // it is written again
			}
			continue
		}
		l.restored++
		l.keep(i, sealed)
	}
}

// layoutOf is the layout of rows of an encoded schema.
func layoutOf(schema []byte) (*rows.Layout, error) {
	r, err := ipc.NewReader(bytes.NewReader(schema))
	if err != nil {
		return nil, fmt.Errorf("schema: %w", err)
	}
	defer r.Release()
	return rows.NewLayout(r.Schema())
}

// encodeSchema encodes a schema for layoutOf; it is empty if the result would differ, as for types of extensions that are not registered.
func encodeSchema(s *arrow.Schema) []byte {
	var buf bytes.Buffer
	w := ipc.NewWriter(&buf, ipc.WithSchema(s))
	if err := w.Close(); err != nil {
		return nil
	}
	if again, err := layoutOf(buf.Bytes()); err != nil || !again.Schema().Equal(s) {
		return nil
	}
	return buf.Bytes()
}

// output receives the chunks of a split as they are decoded, and may drop them from memory.
type output interface {
	add(number int, c *rows.Chunk) error
	finish(sealed rows.Sealed) error
	discard() // after an error
}

// passingBytes is the target length of chunks in spill files, in the types of the table, whose integers may take fewer bytes in chunks. Longer chunks
// than those in memory make a sweep cheaper, which has some hundred bytes of lists for each chunk of a part.
const passingBytes = 2 * rows.TargetBytes

// passing reports whether chunks may be dropped from memory as soon as they are decoded.
func (l *load) passing() bool { return l.Spill != nil || l.again != nil }

// builder builds the chunks of a split, which go to out, or stay in memory if that is nil.
type builder struct {
	*rows.Builder
	out output
}

func (l *load) builder(index int) (*builder, error) {
	out, err := l.output(index)
	target := rows.TargetBytes
	if l.passing() {
		target = passingBytes
	}
	b := &builder{rows.NewBuilder(l.layout, l.arena, target), out}
	if out != nil {
		b.Each(out.add)
	}
	return b, err
}

func (b *builder) finish(split source.Split) (rows.Sealed, error) {
	sealed, err := b.Finish()
	if kept := split.Kept(); err == nil && kept >= 0 && sealed.Rows != kept {
		err = fmt.Errorf("%d rows are left of it, planned were %d: its deletes or statistics have changed or are wrong: cacheserver audit lists the latter", sealed.Rows, kept)
	}
	if err == nil && b.out != nil {
		err = b.out.finish(sealed)
	}
	return sealed, err
}

func (b *builder) discard() {
	b.Discard()
	if b.out != nil {
		b.out.discard()
	}
}

// output returns where the chunks of a split go; nil if they stay in memory.
func (l *load) output(index int) (output, error) {
	if l.Spill == nil {
		if l.again == nil {
			return nil, nil
		}
		return l.again, nil
	}
	about, _ := l.rowBytes(index)
	writer, err := l.Spill.Create(l.spec.Plan, l.spec.First+index, about)
	if err != nil {
		return nil, err
	}
	return &spilling{Writer: writer, backing: &backing{load: l, index: index}}, nil
}

// spilling is an output that writes the chunks of a split to its spill file. After that they may be dropped from memory.
type spilling struct {
	*spill.Writer
	backing *backing
}

func (s *spilling) add(number int, c *rows.Chunk) error {
	if err := s.Add(c); err != nil {
		return err
	}
	c.Store(s.backing, number)
	return nil
}

func (s *spilling) finish(sealed rows.Sealed) (err error) {
	l := s.backing.load
	if s.backing.file, err = s.Finish(l.encoded(), sealed); err == nil {
		l.backings[s.backing.index] = s.backing
	}
	return err
}

func (s *spilling) discard() { s.Discard() }

// againOf is the memory, besides a chunk, for decoding a split again: at most half of all if the split can be read in windows, so that the rest is left
// to streams.
func (l *load) againOf(index int) need { return l.needWithin(index, l.room()/2) }

// leastServing is the least memory for serving: that for decoding a split again with one chunk of it, and three chunks for streams (one that a sweep
// reads, the rows cut out of it, and one that is read in order).
func (l *load) leastServing(index int) int64 {
	s := l.splits[index]
	kept, _ := l.rowBytes(index)
	chunk := min(kept, passingBytes+s.Bytes/max(s.Rows, 1))
	return l.againOf(index).working() + chunk + 3*chunk
}

// setAside sets memory aside for decoding any one of the splits again, of which the longest chunk is given, and returns a function that frees it. A node
// that takes files over with less memory than it takes to load them leaves the memory to its streams instead.
func (l *load) setAside(chunk int64) (free func()) {
	if l.Spill == nil {
		return func() {}
	}
	most := chunk
	for i := range l.splits {
		most = max(most, l.againOf(i).working()+chunk)
	}
	b := l.Budget
	var err error = &offheap.ExhaustedError{Need: most + 2*chunk, Used: b.Used(), Limit: b.Limit(), Kept: b.Kept()}
	if most+2*chunk <= b.Limit()-b.Kept() {
		free, err = l.Limiter.setAside(b, most)
	}
	if err != nil {
		l.Log.Warn("no memory is set aside for decoding broken chunks of spill files again: reading them may fail", "reason", err)
		return func() {}
	}
	l.progress.setAgain(most)
	return free
}

// closeFiles closes the files.
func (l *load) closeFiles() {
	for _, b := range l.backings {
		if b == nil {
			continue
		}
		if err := b.file.Close(!l.SpillRemoved); err != nil {
			l.Log.Warn("a spill file is left", "reason", err)
		}
	}
}

// backing reads the chunks of a split from its file. Where that fails, it decodes the split anew from the table.
type backing struct {
	load  *load
	index int // in the assignment
	file  *spill.File
}

// ReadChunk implements rows.Backing.
func (b *backing) ReadChunk(number int, memory []byte) error {
	err := b.file.ReadChunk(number, memory)
	if err != nil {
		err = b.file.ReadChunk(number, memory)
	}
	if err == nil {
		b.load.Metrics.SpillRead.Add(float64(len(memory)))
		return nil
	}
	b.load.Log.Warn("a chunk is decoded again from the table", "split", b.load.splits[b.index].String(), "chunk", number, "reason", err)
	if again := b.decodeAgain(number, memory); again != nil {
		return fmt.Errorf("%w; decoding it again: %w", err, again)
	}
	b.load.Metrics.SpillRepaired.Inc()
	if err := b.file.Repair(number, memory); err != nil {
		b.load.Log.Warn("a chunk can't be written again: each read of it decodes it", "reason", err)
	}
	return nil
}

// ReadRanges implements rows.Backing.
func (b *backing) ReadRanges(number int, memory []byte, ranges []rows.Range) (read int64, err error) {
	if read, err = b.file.ReadRanges(number, memory, ranges); err != nil {
		return int64(len(memory)), b.ReadChunk(number, memory)
	}
	b.load.Metrics.SpillRead.Add(float64(read))
	return read, nil
}

// again is an output that keeps one chunk, by its number, of a split that is decoded again, and drops the others.
type again struct {
	backing *backing
	number  int
	memory  []byte // of the chunk
	need    need   // within what was set aside, besides a chunk
	found   bool
}

func (a *again) add(number int, c *rows.Chunk) error {
	if number == a.number && len(c.Memory()) == len(a.memory) {
		copy(a.memory, c.Memory())
		a.found = true
	}
	c.Store(a.backing, number)
	c.Free()
	return nil
}

func (a *again) finish(sealed rows.Sealed) error {
	if !a.found || sealed.Hash != a.backing.file.Head().Hash {
		return fmt.Errorf("%s has other rows now", a.backing.load.splits[a.backing.index])
	}
	return nil
}

func (a *again) discard() { a.found = false }

// decodeAgain decodes the split and copies a chunk of it to memory. The rest of it is dropped.
func (b *backing) decodeAgain(number int, memory []byte) error {
	l := b.load
	l.Limiter.again.Lock() // one at a time: its memory was set aside once
	defer l.Limiter.again.Unlock()
	cfg := *l.Config
	cfg.Budget, cfg.Sharers, cfg.Spill = l.Limiter.forAgain(l.Budget), 1, nil
	one := &load{
		Config: &cfg, spec: l.spec, splits: l.splits, layout: l.layout, progress: &Progress{}, sealed: make([]rows.Sealed, len(l.splits)),
		arena: offheap.NewArena(cfg.Budget).Paged(), early: NewEarly(len(l.splits)),
	}
	one.again = &again{backing: b, number: number, memory: memory, need: l.againOf(b.index)}
	defer one.arena.Release()
	defer l.Limiter.load()()
	if err := one.open(l.serving); err != nil {
		return err
	}
	return one.retry(l.serving, b.index, func() error { return one.loadSplit(l.serving, b.index) })
}

// spillState is the part of a load that outlives it, where rows are read from files.
type spillState struct {
	serving  context.Context // ends with the assignment
	backings []*backing      // by split
	restored int             // number of splits whose files were taken over
	encoded  func() []byte   // the schema
	again    *again          // what is decoded again; nil: it is a whole load
}

// open opens the version of the dataset that is loaded.
func (l *load) open(ctx context.Context) error {
	version := source.Version{Pin: l.spec.Pin, Selection: l.spec.Selection}
	return l.retry(ctx, Whole, func() (err error) {
		l.dataset, err = l.Source.Open(ctx, version, l.Limiter.buffers)
		return err
	})
}
