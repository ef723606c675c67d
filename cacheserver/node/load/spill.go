// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package load

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"

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

// spill writes the file of a split. Its chunks may then be dropped from memory.
func (l *load) spill(index int, sealed rows.Sealed) error {
	if l.Spill == nil {
		return nil
	}
	file, err := l.Spill.Write(l.spec.Plan, l.spec.First+index, l.encoded(), sealed)
	if err != nil {
		return err
	}
	b := &backing{load: l, index: index, file: file}
	for i, c := range sealed.Chunks {
		c.Store(b, i)
	}
	l.backings[index] = b
	return nil
}

// mostOfOne is the most memory that a split takes while it is loaded, with its rows.
func (l *load) mostOfOne() (most int64) {
	for i := range l.splits {
		n := l.need(i)
		most = max(most, n.working()+max(n.rows, l.sealed[i].Bytes))
	}
	return most
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

// decodeAgain decodes the split and copies a chunk of it to memory. The rest of it is dropped.
func (b *backing) decodeAgain(number int, memory []byte) error {
	l := b.load
	l.again.Lock() // one at a time: it needs memory for a whole split
	defer l.again.Unlock()
	one := &load{
		spec: l.spec, splits: l.splits, layout: l.layout, progress: &Progress{}, sealed: make([]rows.Sealed, len(l.splits)),
		arena: offheap.NewArena(l.Budget).Paged(), early: NewEarly(len(l.splits)),
	}
	cfg := *l.Config
	one.Config, cfg.Spill = &cfg, nil
	defer one.arena.Release()
	defer l.Limiter.load()()
	if err := one.open(l.serving); err != nil {
		return err
	}
	if err := one.retry(l.serving, b.index, func() error { return one.loadSplit(l.serving, b.index) }); err != nil {
		return err
	}
	sealed, head := one.sealed[b.index], b.file.Head()
	if sealed.Hash != head.Hash || len(sealed.Chunks[number].Memory()) != len(memory) {
		return fmt.Errorf("%s has other rows now", l.splits[b.index])
	}
	copy(memory, sealed.Chunks[number].Memory())
	return nil
}

// spillState is the part of a load that outlives it, where rows are read from files.
type spillState struct {
	serving  context.Context // ends with the assignment
	backings []*backing      // by split
	restored int             // number of splits whose files were taken over
	encoded  func() []byte   // the schema
	again    sync.Mutex
}

// open opens the version of the dataset that is loaded.
func (l *load) open(ctx context.Context) error {
	version := source.Version{Pin: l.spec.Pin, Selection: l.spec.Selection}
	return l.retry(ctx, Whole, func() (err error) {
		l.dataset, err = l.Source.Open(ctx, version, l.Limiter.buffers)
		return err
	})
}
