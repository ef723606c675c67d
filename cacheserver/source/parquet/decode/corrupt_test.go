// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"bytes"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/file"
)

// FuzzCorruptColumn changes bytes of a column chunk: the result must be an error, or the requested number of rows in consistent
// arrays; never a panic or an unbounded allocation. A plain test run uses the first seeds, -fuzz any others.
func FuzzCorruptColumn(f *testing.F) {
	for seed := range uint64(150) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		d := newDice(t, seed)
		field := d.field()
		properties, about := d.properties(field.Type, compress.Codecs.Uncompressed) // damage to compressed pages would only reach the codec
		rows := d.array(field, 1+d.IntN(500))
		t.Logf("%d rows of %s, nullable %t; %s", rows.Len(), field.Type, field.Nullable, about)
		data := write(t, field, rows, int64(rows.Len()), properties)
		d.damage(t, data)
		mem := memory.NewCheckedAllocator(bounded{dirty{memory.DefaultAllocator}, t, mostAtOnce})
		defer mem.AssertSize(t, 0)
		c, err := d.openChunk(t, data, 0, mem)
		if err != nil {
			t.Logf("open: %v", err)
			return
		}
		defer c.Close()
		batch := 1 + d.IntN(rows.Len())
		for at := 0; at < rows.Len(); at += batch {
			n := min(batch, rows.Len()-at)
			got, err := c.Read(n)
			if err != nil {
				t.Logf("rows [%d, %d): %v", at, at+n, err)
				return
			}
			if got.Len() != n {
				t.Errorf("%d rows where %d were asked for", got.Len(), n)
			}
			validate(t, got)
			got.Release()
		}
	})
}

// mostAtOnce is many times the memory of 500 rows of any of the types.
const mostAtOnce = 64 << 20

// bounded is an allocator that fails the test if damage causes a large allocation.
type bounded struct {
	dirty
	t    *testing.T
	most int
}

func (b bounded) Allocate(size int) []byte {
	if size > b.most {
		b.t.Fatalf("%d bytes are allocated at once, want at most %d", size, b.most)
	}
	return b.dirty.Allocate(size)
}

func (b bounded) Reallocate(size int, old []byte) []byte {
	out := b.Allocate(size)
	copy(out, old)
	b.Free(old)
	return out
}

// damage changes a few bytes of the column chunk.
func (d dice) damage(t *testing.T, data []byte) {
	t.Helper()
	r, err := file.NewParquetReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	chunk, err := r.RowGroup(0).MetaData().ColumnChunk(0)
	if err != nil {
		t.Fatal(err)
	}
	from := chunk.DataPageOffset()
	if chunk.HasDictionaryPage() {
		from = min(from, chunk.DictionaryPageOffset())
	}
	for range 1 + d.IntN(3) {
		data[from+d.Int64N(chunk.TotalCompressedSize())] = pick(d, 0, 0xff, byte(d.IntN(256)))
	}
}

// validate fails the test if an array's buffers are too short for its values.
func validate(t *testing.T, arr arrow.Array) {
	t.Helper()
	if list, ok := arr.(*array.List); ok {
		if err := list.ValidateFull(); err != nil {
			t.Error(err)
		}
		arr = list.ListValues()
	}
	for i := range arr.Len() {
		if arr.IsValid(i) {
			_ = arr.ValueStr(i) // reads every value, and panics if a buffer is too short
		}
	}
}
