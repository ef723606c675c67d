// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"bytes"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
)

// dirty is an allocator of memory with arbitrary content: a column must write every byte that matters.
type dirty struct{ memory.Allocator }

func (d dirty) Allocate(size int) []byte {
	b := d.Allocator.Allocate(size)
	fill(b, 0xa5)
	return b
}

func (d dirty) Reallocate(size int, b []byte) []byte {
	out := d.Allocate(size)
	copy(out, b)
	d.Free(b)
	return out
}

// inMemory is a file in memory that implements Near, in pieces of a given size.
type inMemory struct {
	*bytes.Reader
	data  []byte
	piece int64
}

func (f inMemory) Near(offset, length int64) []byte {
	end := min(offset+length, (offset/f.piece+1)*f.piece)
	return f.data[offset:end:end]
}

// openChunk opens the single column of a row group, at random in a file that is read or in one in memory.
func (d dice) openChunk(t testing.TB, data []byte, group int, mem memory.Allocator) (*Column, error) {
	t.Helper()
	c := chunkOf(t, data, group)
	if d.chance(50) {
		c.File = inMemory{bytes.NewReader(data), data, pick[int64](d, 100, 3000, 1<<40)}
	}
	return Open(c, mem)
}

// chunkOf returns the single column chunk of a row group.
func chunkOf(t testing.TB, data []byte, group int) Chunk {
	t.Helper()
	r, err := file.NewParquetReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := pqarrow.NewSchemaManifest(r.MetaData().Schema, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	meta, err := r.RowGroup(group).MetaData().ColumnChunk(0)
	if err != nil {
		t.Fatal(err)
	}
	offset := meta.DataPageOffset()
	if meta.HasDictionaryPage() {
		offset = min(offset, meta.DictionaryPageOffset())
	}
	return Chunk{
		File: bytes.NewReader(data), Offset: offset, Length: meta.TotalCompressedSize(), Codec: meta.Compression(), PageBytes: meta.TotalUncompressedSize(),
		Leaf: r.MetaData().Schema.Column(0), Field: *manifest.Fields[0].Field, Rows: r.RowGroup(group).NumRows(), Values: meta.NumValues(),
	}
}

// TestCounts checks that a footer with other counts than the pages is an error and does not yield fewer rows.
func TestCounts(t *testing.T) {
	for name, field := range map[string]arrow.Field{
		"flat": {Name: "c", Type: arrow.PrimitiveTypes.Int64, Nullable: true},
		"list": {Name: "c", Type: arrow.ListOf(arrow.PrimitiveTypes.Int64), Nullable: true},
	} {
		d := newDice(t, 3)
		rows := d.array(field, 1000)
		data := write(t, field, rows, 1000, parquet.NewWriterProperties(parquet.WithDataPageSize(100), parquet.WithBatchSize(64)))
		for change, chunk := range map[string]func(*Chunk){
			"one row less":   func(c *Chunk) { c.Rows-- },
			"one row more":   func(c *Chunk) { c.Rows++ },
			"one value less": func(c *Chunk) { c.Values-- },
			"one value more": func(c *Chunk) { c.Values++ },
		} {
			t.Run(name+" "+change, func(t *testing.T) {
				c := chunkOf(t, data, 0)
				chunk(&c)
				column, err := Open(c, memory.DefaultAllocator)
				if err != nil {
					return
				}
				defer column.Close()
				if _, err := column.Read(int(c.Rows)); err == nil {
					t.Error("no error")
				}
			})
		}
	}
}

// reference reads a row group's column with pqarrow. It skips the test where that fails, as v18.8.0 does for brotli-compressed pages
// of version 2 that consist only of levels.
func reference(t testing.TB, data []byte, group int) arrow.Array {
	t.Helper()
	r, err := file.NewParquetReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	reader, err := pqarrow.NewFileReader(r, pqarrow.ArrowReadProperties{}, memory.DefaultAllocator)
	if err != nil {
		t.Fatal(err)
	}
	table, err := reader.ReadRowGroups(t.Context(), []int{0}, []int{group})
	if err != nil {
		t.Skipf("pqarrow cannot read this: %v", err)
	}
	defer table.Release()
	all, err := array.Concatenate(table.Column(0).Data().Chunks(), memory.DefaultAllocator)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// FuzzColumn compares Column with pqarrow on random files, in batches of various sizes. A plain test run uses the first seeds, -fuzz
// any others.
func FuzzColumn(f *testing.F) {
	for seed := range uint64(100) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		d := newDice(t, seed)
		field := d.field()
		properties, about := d.properties(field.Type, codecs...)
		rows := d.array(field, 1+d.IntN(3000))
		t.Logf("%d rows of %s, nullable %t, %d null; %s", rows.Len(), field.Type, field.Nullable, rows.NullN(), about)
		data := write(t, field, rows, int64(1+d.IntN(2*rows.Len())), properties)
		r, err := file.NewParquetReader(bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		for group := range r.NumRowGroups() {
			compare(t, d, data, group)
		}
	})
}

// compare reads a row group both ways.
func compare(t *testing.T, d dice, data []byte, group int) {
	t.Helper()
	want := reference(t, data, group)
	defer want.Release()
	mem := memory.NewCheckedAllocator(dirty{memory.DefaultAllocator})
	defer mem.AssertSize(t, 0)
	c, err := d.openChunk(t, data, group, mem)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	unchanged := bytes.Clone(data)
	defer func() {
		if !bytes.Equal(data, unchanged) {
			t.Error("the file was written to")
		}
	}()
	batch := 1 + d.IntN(want.Len())
	for at := 0; at < want.Len(); {
		n := min(1+d.IntN(batch), want.Len()-at)
		got, err := c.Read(n)
		if err != nil {
			t.Fatalf("rows [%d, %d) of %d: %v", at, at+n, want.Len(), err)
		}
		part := array.NewSlice(want, int64(at), int64(at+n))
		if !array.Equal(got, part) {
			t.Errorf("rows [%d, %d) of %d:\n got %v\nwant %v", at, at+n, want.Len(), got, part)
		}
		if got.NullN() != part.NullN() {
			t.Errorf("rows [%d, %d): %d nulls, want %d", at, at+n, got.NullN(), part.NullN())
		}
		part.Release()
		got.Release()
		at += n
		if t.Failed() {
			return
		}
	}
	if _, err := c.Read(1); err == nil {
		t.Error("a row after the last was read")
	}
}
