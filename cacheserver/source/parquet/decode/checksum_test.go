// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"bytes"
	"hash/crc32"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"

	"github.com/kubeflow/datacache/test/kit/parquettest"
	"github.com/kubeflow/datacache/test/kit/seedtest"
)

// summed returns a chunk with CRCs in its page headers, which arrow-go does not write, and all its bytes.
func summed(t testing.TB, c Chunk) (Chunk, []byte) {
	t.Helper()
	p := pages{from: c.File, at: c.Offset, end: c.Offset + c.Length, mem: memory.DefaultAllocator}
	defer p.close()
	var out []byte
	for p.at < p.end {
		at := p.at
		h, err := p.header()
		if err != nil {
			t.Fatal(err)
		}
		head := make([]byte, p.at-at)
		if err := readFull(c.File, head, at); err != nil {
			t.Fatal(err)
		}
		body, err := p.bytes(h.page.value[pageCompressed])
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, parquettest.WithCRC(head, crc32.ChecksumIEEE(body))...)
		out = append(out, body...)
	}
	c.File, c.Offset, c.Length = bytes.NewReader(out), 0, int64(len(out))
	return c, out
}

// readWhole reads a column, or returns the error.
func readWhole(c Chunk) (arrow.Array, error) {
	column, err := Open(c, dirty{memory.DefaultAllocator})
	if err != nil {
		return nil, err
	}
	defer column.Close()
	return column.Read(int(c.Rows))
}

// TestFlippedBits flips 1 or 3 bits in bodies or headers of the pages of a column chunk with CRCs: the result must be an error or
// exactly the rows that were written. Verify must detect any flip in a body.
func TestFlippedBits(t *testing.T) {
	harmless, refused := 0, 0
	for _, seed := range seedtest.Seeds(t, 60) {
		d := newDice(t, seed)
		field := d.field()
		properties, about := d.properties(field.Type, codecs...)
		var data []byte
		rows := d.array(field, 1+d.IntN(500))
		if !t.Run(about, func(t *testing.T) { data = write(t, field, rows, int64(rows.Len()), properties) }) || data == nil {
			continue
		}
		chunk, good := summed(t, chunkOf(t, data, 0))
		if _, err := Verify(chunk, memory.DefaultAllocator); err != nil {
			t.Fatalf("seed %d, %s: %v", seed, about, err)
		}
		want, err := readWhole(chunk)
		if err != nil {
			t.Fatalf("seed %d, %s: %v", seed, about, err)
		}
		for range 100 {
			bad := bytes.Clone(good)
			for range pick(d, 1, 3) {
				bad[d.IntN(len(bad))] ^= 1 << d.IntN(8)
			}
			chunk.File = bytes.NewReader(bad)
			got, err := readWhole(chunk)
			if err != nil {
				refused++
				continue
			}
			harmless++
			if !array.Equal(got, want) {
				t.Errorf("seed %d, %s of %s nullable %t: other rows, no error; bytes that differ: %v", seed, about, field.Type, field.Nullable, differing(good, bad))
			}
			got.Release()
		}
		want.Release()
	}
	t.Logf("%d refused, %d harmless", refused, harmless)
}

// differing lists the offsets at which a and b differ, with the bytes there.
func differing(a, b []byte) (at [][3]int) {
	for i := range a {
		if a[i] != b[i] {
			at = append(at, [3]int{i, int(a[i]), int(b[i])})
		}
	}
	return at
}

// valued is a chunk of which the footer states n values.
func valued(c Chunk, n int64) Chunk {
	c.Values = n
	return c
}

// TestVerify checks that either all pages of a column chunk must have CRCs, or none.
func TestVerify(t *testing.T) {
	d := newDice(t, 1)
	field := arrow.Field{Name: "c", Type: arrow.PrimitiveTypes.Int64, Nullable: true}
	data := write(t, field, d.array(field, 1000), 1000, parquet.NewWriterProperties(parquet.WithDataPageSize(100), parquet.WithBatchSize(64), parquet.WithDictionaryDefault(false)))
	bare := chunkOf(t, data, 0)
	with, good := summed(t, bare)
	at := func(f func(b []byte) []byte) Chunk {
		c := with
		b := f(bytes.Clone(good))
		c.File, c.Length = bytes.NewReader(b), int64(len(b))
		return c
	}
	for name, tt := range map[string]struct {
		chunk Chunk
		want  string
	}{
		"with":    {with, ""},
		"without": {bare, ""},
		"flipped": {at(func(b []byte) []byte { b[len(b)-1] ^= 1; return b }), "checksum does not match"},
		"cut":     {at(func(b []byte) []byte { return b[:len(b)-1] }), "left"},
		"fewer":   {valued(bare, 1001), "have 1000 values, the footer says 1001"},
		"more":    {valued(bare, 999), "more than the 999 values"},
		"mixed": {at(func(b []byte) []byte {
			plain := make([]byte, bare.Length)
			if err := readFull(bare.File, plain, bare.Offset); err != nil {
				t.Fatal(err)
			}
			return append(b, plain...)
		}), "some have none"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Verify(tt.chunk, memory.DefaultAllocator)
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !bytes.Contains([]byte(err.Error()), []byte(tt.want))) {
				t.Errorf("%v, want an error with %q", err, tt.want)
			}
		})
	}
}
