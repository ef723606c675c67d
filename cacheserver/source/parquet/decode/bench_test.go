// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
)

// BenchmarkColumn decodes 16 MiB of lists of int32, with 512 or with 1 to 40 values each, in batches of 4 MiB. "copy" is the
// reference: copying the values out of the file. The file is in memory for "plain", as prefetched data is, and is read for the
// others. Memory is reused, as package iceberg does.
func BenchmarkColumn(b *testing.B) {
	const size, batch = 16 << 20, 4 << 20
	for _, lists := range []struct {
		name            string
		shortest, spans int
	}{{"512", 512, 1}, {"1-40", 1, 40}} {
		b.Run(lists.name, func(b *testing.B) {
			field, rows := someLists(size/4, lists.shortest, lists.spans)
			perBatch := rows.Len() / (size / batch)
			plain := parquet.NewWriterProperties(parquet.WithDictionaryDefault(false))
			file := write(b, field, rows, int64(rows.Len()), plain)
			b.Run("copy", func(b *testing.B) {
				dst := make([]byte, batch)
				b.SetBytes(size)
				for b.Loop() {
					for at := 0; at < size; at += batch {
						copy(dst, file[at:])
					}
				}
			})
			b.Run("plain", func(b *testing.B) {
				chunk := chunkOf(b, file, 0)
				chunk.File = inMemory{bytes.NewReader(file), file, int64(len(file))}
				readColumn(b, chunk, size, perBatch)
			})
			for name, properties := range map[string]*parquet.WriterProperties{
				"plain-pread":     plain,
				"plain-v2":        parquet.NewWriterProperties(parquet.WithDictionaryDefault(false), parquet.WithDataPageVersion(parquet.DataPageV2)),
				"plain-zstd":      parquet.NewWriterProperties(parquet.WithDictionaryDefault(false), parquet.WithCompression(compress.Codecs.Zstd)),
				"dictionary":      parquet.NewWriterProperties(),
				"dictionary-zstd": parquet.NewWriterProperties(parquet.WithCompression(compress.Codecs.Zstd)),
			} {
				b.Run(name, func(b *testing.B) {
					readColumn(b, chunkOf(b, write(b, field, rows, int64(rows.Len()), properties), 0), size, perBatch)
				})
			}
		})
	}
}

// someLists returns n random values in lists of shortest to shortest+spans-1 values.
func someLists(n, shortest, spans int) (arrow.Field, arrow.Array) {
	r := rand.New(rand.NewPCG(1, 2))
	field := arrow.Field{Name: "c", Type: arrow.ListOfField(arrow.Field{Name: "element", Type: arrow.PrimitiveTypes.Int32, Nullable: true}), Nullable: true}
	lists := array.NewListBuilder(memory.DefaultAllocator, arrow.PrimitiveTypes.Int32)
	defer lists.Release()
	values := lists.ValueBuilder().(*array.Int32Builder)
	for n > 0 {
		length := min(n, shortest+r.IntN(spans))
		n -= length
		lists.Append(true)
		for range length {
			values.Append(int32(r.ExpFloat64() * 2000))
		}
	}
	return field, lists.NewArray()
}

// readColumn reads a column chunk repeatedly, batch by batch.
func readColumn(b *testing.B, chunk Chunk, size int64, batch int) {
	b.Helper()
	mem := &recycler{}
	b.SetBytes(size)
	for b.Loop() {
		c, err := Open(chunk, mem)
		if err != nil {
			b.Fatal(err)
		}
		for left := int(chunk.Rows); left > 0; left -= batch {
			rows, err := c.Read(min(left, batch))
			if err != nil {
				b.Fatal(err)
			}
			rows.Release()
		}
		c.Close()
	}
}

// recycler is an allocator that reuses freed memory. It is not safe for concurrent use.
type recycler struct{ free [][]byte }

func (r *recycler) Allocate(size int) []byte {
	for i, b := range r.free {
		if size <= cap(b) && cap(b) <= 2*size+64 {
			r.free = append(r.free[:i], r.free[i+1:]...)
			return b[:size]
		}
	}
	return make([]byte, size)
}

func (r *recycler) Reallocate(size int, b []byte) []byte {
	if size <= cap(b) {
		return b[:size]
	}
	grown := r.Allocate(size)
	copy(grown, b)
	r.Free(b)
	return grown
}

func (r *recycler) Free(b []byte) { r.free = append(r.free, b) }
