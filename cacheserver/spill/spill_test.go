// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package spill

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/cacheserver/rows"
	"github.com/kubeflow/datacache/test/kit/seedtest"
)

// split makes rows of several chunks.
func split(t *testing.T) (*rows.Layout, rows.Sealed) {
	t.Helper()
	schema := arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64}, {Name: "text", Type: arrow.BinaryTypes.String}}, nil)
	layout, err := rows.NewLayout(schema)
	if err != nil {
		t.Fatal(err)
	}
	arena := offheap.NewArena(offheap.NewBudget(1 << 30)).Paged()
	t.Cleanup(arena.Release)
	b := rows.NewBuilder(layout, arena, 48<<10)
	for i := range 8 {
		batch := array.NewRecordBuilder(memory.DefaultAllocator, schema)
		for j := range 200 {
			batch.Field(0).(*array.Int64Builder).Append(int64(i*200+j) << 20)
			batch.Field(1).(*array.StringBuilder).Append(strings.Repeat("x", i+j))
		}
		if err := b.Append(batch.NewRecordBatch(), nil); err != nil {
			t.Fatal(err)
		}
		batch.Release()
	}
	sealed, err := b.Finish()
	if err != nil {
		t.Fatal(err)
	}
	if len(sealed.Chunks) < 3 {
		t.Fatalf("%d chunks, want several", len(sealed.Chunks))
	}
	return layout, sealed
}

// written is the file of a split, as Write left it and closed.
func written(t *testing.T) (d *Dir, l *rows.Layout, sealed rows.Sealed, name string) {
	t.Helper()
	l, sealed = split(t)
	d = New(t.TempDir(), 3, 0)
	f, err := d.Write("plan", 7, []byte("schema"), sealed)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(true); err != nil {
		t.Fatal(err)
	}
	return d, l, sealed, filepath.Join(d.Path(), "plan", "3", "7.rows")
}

func TestAFileHasTheChunks(t *testing.T) {
	d, l, sealed, name := written(t)
	if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o600 || info.Size()%offheap.PageSize != 0 {
		t.Errorf("the file is %v, %v", info, err)
	}
	f, err := d.Open("plan", 7)
	if err != nil {
		t.Fatal(err)
	}
	h := f.Head()
	if string(h.Schema) != "schema" || h.Rows != sealed.Rows || h.Bytes != sealed.Bytes || h.Hash != sealed.Hash {
		t.Errorf("the head is %v", h)
	}
	if d.Used() != f.size {
		t.Errorf("%d bytes in use, want %d", d.Used(), f.size)
	}
	arena := offheap.NewArena(offheap.NewBudget(1 << 30)).Paged()
	defer arena.Release()
	again, err := f.Attach(l, arena, f)
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range sealed.Chunks {
		got := pages(len(c.Memory()))
		if err := f.ReadChunk(i, got); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, c.Memory()) || again.Chunks[i].Rows() != c.Rows() || !bytes.Equal(again.Chunks[i].Form(), sealed.Chunks[i].Form()) {
			t.Errorf("chunk %d differs", i)
		}
	}
	if err := f.Close(false); err != nil || d.Used() != 0 {
		t.Errorf("Close: %v, %d bytes in use", err, d.Used())
	}
	if left, err := os.ReadDir(d.Path()); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestBrokenHeads opens files that must not be taken over.
func TestBrokenHeads(t *testing.T) {
	tests := []struct {
		name, want string
		damage     func(file []byte) []byte
	}{
		{"another version", "not a file of this version", func(b []byte) []byte { b[7]++; return b }},
		{"a flipped bit in the head", "another checksum", func(b []byte) []byte { b[len(b)-offheap.PageSize+5] ^= 4; return b }},
		{"a flipped bit in its checksum", "another checksum", func(b []byte) []byte { b[20] ^= 1; return b }},
		{"an absurd length", "not a file of this version", func(b []byte) []byte { b[14] = 1; return b }},
		{"a length past the end", "its head has 16", func(b []byte) []byte { b[11] = 1; return b }},
		{"a torn end", "another checksum", func(b []byte) []byte { return b[:len(b)-offheap.PageSize] }},
		{"a torn head", "EOF", func(b []byte) []byte { return b[:100] }},
		{"nothing", "EOF", func([]byte) []byte { return nil }},
	}
	d, _, _, name := written(t)
	whole, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if err := os.WriteFile(name, test.damage(bytes.Clone(whole)), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := d.Open("plan", 7); err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), name) {
				t.Errorf("Open: %v, want %q and the file's name", err, test.want)
			}
			if d.Used() != 0 {
				t.Errorf("%d bytes in use", d.Used())
			}
		})
	}
}

// TestChunksOfAnotherLayout attaches chunks to a layout that is not theirs.
func TestChunksOfAnotherLayout(t *testing.T) {
	d, _, _, _ := written(t)
	f, err := d.Open("plan", 7)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close(false)
	other, err := rows.NewLayout(arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64}}, nil))
	if err != nil {
		t.Fatal(err)
	}
	arena := offheap.NewArena(offheap.NewBudget(1 << 30)).Paged()
	defer arena.Release()
	if _, err := f.Attach(other, arena, f); err == nil || !strings.Contains(err.Error(), "another layout") {
		t.Errorf("Attach: %v", err)
	}
}

// TestBrokenChunks reads chunks whose bytes were flipped, or are behind the end of a file that was cut while it is in use, and writes them again.
func TestBrokenChunks(t *testing.T) {
	d, _, sealed, name := written(t)
	f, err := d.Open("plan", 7)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close(false)
	raw, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	last := len(sealed.Chunks) - 1
	if _, err := raw.WriteAt([]byte{0xff}, f.Head().Chunks[1].offset+100); err != nil {
		t.Fatal(err)
	}
	if err := raw.Truncate(f.Head().Chunks[last].offset + offheap.PageSize); err != nil {
		t.Fatal(err)
	}
	read := func(i int) error { return f.ReadChunk(i, pages(len(sealed.Chunks[i].Memory()))) }
	if err := read(0); err != nil {
		t.Errorf("a chunk that is whole: %v", err)
	}
	if err := read(1); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a flipped byte: %v", err)
	}
	if err := read(last); err == nil {
		t.Error("a chunk behind the end was read")
	}
	for _, i := range []int{1, last} {
		if err := f.Repair(i, sealed.Chunks[0].Memory()); err == nil {
			t.Errorf("other rows were written in place of chunk %d", i)
		}
		whole := pages(len(sealed.Chunks[i].Memory()))
		copy(whole, sealed.Chunks[i].Memory())
		if err := f.Repair(i, whole); err != nil {
			t.Error(err)
		}
		if err := read(i); err != nil {
			t.Errorf("a chunk that was written again: %v", err)
		}
	}
}

// TestRanges reads random ranges of chunks, then ranges of a chunk with a flipped byte: it is found in the piece that has it, and not elsewhere.
func TestRanges(t *testing.T) {
	d, _, sealed, name := written(t)
	f, err := d.Open("plan", 7)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close(false)
	r, piece := seedtest.New(t), f.Head().Chunks[0].Piece
	for i, c := range sealed.Chunks {
		size := int64(len(c.Memory()))
		for range 20 {
			var ranges []rows.Range
			for range 1 + r.IntN(3) {
				from := r.Int64N(size)
				ranges = append(ranges, rows.Range{From: from, To: from + 1 + r.Int64N(min(size-from, 300))})
			}
			got := pages(int(size))
			read, err := f.ReadRanges(i, got, ranges)
			if err != nil || read < 1 || read > size {
				t.Fatalf("chunk %d, %v: %d bytes were read, error %v", i, ranges, read, err)
			}
			for _, q := range ranges {
				if !bytes.Equal(got[q.From:q.To], c.Memory()[q.From:q.To]) {
					t.Errorf("chunk %d: %v differs", i, q)
				}
			}
		}
	}
	long := slices.IndexFunc(sealed.Chunks, func(c *rows.Chunk) bool { return int64(len(c.Memory())) > piece })
	raw, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	if _, err := raw.WriteAt([]byte{0xff}, f.Head().Chunks[long].offset+piece+9); err != nil {
		t.Fatal(err)
	}
	memory := pages(len(sealed.Chunks[long].Memory()))
	if n, err := f.ReadRanges(long, memory, []rows.Range{{From: 10, To: 20}}); err != nil || n != piece {
		t.Errorf("a piece that is whole: %d bytes were read, error %v; want %d", n, err, piece)
	}
	if _, err := f.ReadRanges(long, memory, []rows.Range{{From: 10, To: piece + 1}}); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a flipped byte: %v", err)
	}
}

// TestJoined checks which ranges are merged, and the lengths of pieces.
func TestJoined(t *testing.T) {
	const k = 1 << 10
	got := joined([]rows.Range{{From: 300 * k, To: 300*k + 1}, {From: 5, To: 6}, {From: 60 * k, To: 61 * k}, {From: 140 * k, To: 141 * k}}, 4*k, 301*k)
	if want := []rows.Range{{From: 0, To: 64 * k}, {From: 140 * k, To: 144 * k}, {From: 300 * k, To: 301 * k}}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for row, want := range map[int64]int64{1: 32 * k, 8*k - 1: 32 * k, 8 * k: 4 * k, 20 * k: 4 * k, 110 * k: 16 * k, 1000 * k: 32 * k} {
		if got := PieceOf(row); got != want {
			t.Errorf("pieces of rows of %d bytes have %d bytes, want %d", row, got, want)
		}
	}
}

// TestKeep removes what this node left of other plans, and nothing else.
func TestKeep(t *testing.T) {
	_, sealed := split(t)
	path := t.TempDir()
	for node := range 2 {
		for _, plan := range []string{"old", "new"} {
			f, err := New(path, node, 0).Write(plan, 1, nil, sealed)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close(true)
		}
	}
	if err := New(path, 0, 0).Keep("new"); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"old/0": false, "new/0/1.rows": true, "old/1/1.rows": true, "new/1/1.rows": true} {
		if _, err := os.Stat(filepath.Join(path, name)); errors.Is(err, fs.ErrNotExist) == want {
			t.Errorf("%s: %v, want it to be there: %v", name, err, want)
		}
	}
	if err := New(filepath.Join(path, "missing"), 0, 0).Keep("new"); err != nil {
		t.Errorf("a folder that is missing: %v", err)
	}
}

// TestTheLimit writes until the files reach it.
func TestTheLimit(t *testing.T) {
	_, sealed := split(t)
	f, err := New(t.TempDir(), 0, 0).Write("plan", 0, nil, sealed)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close(false)
	d := New(t.TempDir(), 0, 2*f.size+100) // the head is one page, which is not in what Write says that it needs
	var full *FullError
	for i := range 2 {
		f, err := d.Write("plan", i, nil, sealed)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close(false)
	}
	if _, err := d.Write("plan", 2, nil, sealed); !errors.As(err, &full) || full.Need != f.size-offheap.PageSize || full.Used != 2*f.size || full.Limit != 2*f.size+100 {
		t.Errorf("Write: %v", err)
	}
	if d.Used() != 2*f.size {
		t.Errorf("%d bytes in use after it", d.Used())
	}
}

// TestWritesThatFail leave no file, and no bytes counted.
func TestWritesThatFail(t *testing.T) {
	_, sealed := split(t)
	path := t.TempDir()
	if err := os.WriteFile(filepath.Join(path, "plan"), nil, 0o600); err != nil { // in place of the folder
		t.Fatal(err)
	}
	d := New(path, 0, 0)
	if _, err := d.Write("plan", 0, nil, sealed); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("Write: %v", err)
	}
	if d.Used() != 0 {
		t.Errorf("%d bytes in use", d.Used())
	}
}
