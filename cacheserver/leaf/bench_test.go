// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package leaf

import (
	"math/rand/v2"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
)

// BenchmarkColumn decodes lists of 512 int32; "copy" is the bar: a copy of their bytes.
func BenchmarkColumn(b *testing.B) {
	const rows, length, batch = 8192, 512, 2048
	r := rand.New(rand.NewPCG(1, 2))
	field := arrow.Field{Name: "c", Type: arrow.ListOfField(arrow.Field{Name: "element", Type: arrow.PrimitiveTypes.Int32, Nullable: true}), Nullable: true}
	lists := array.NewListBuilder(memory.DefaultAllocator, arrow.PrimitiveTypes.Int32)
	values := lists.ValueBuilder().(*array.Int32Builder)
	for range rows {
		lists.Append(true)
		for range length {
			values.Append(int32(r.ExpFloat64() * 2000))
		}
	}
	all := lists.NewArray()
	src, dst := make([]byte, 4*batch*length), make([]byte, 4*batch*length)
	b.Run("copy", func(b *testing.B) {
		b.SetBytes(4 * rows * length)
		for b.Loop() {
			for range rows / batch {
				copy(dst, src)
			}
		}
	})
	for name, dictionary := range map[string]bool{"plain": false, "dictionary": true} {
		for _, codec := range []compress.Compression{compress.Codecs.Uncompressed, compress.Codecs.Zstd} {
			data := write(b, field, all, rows, parquet.NewWriterProperties(parquet.WithDictionaryDefault(dictionary), parquet.WithCompression(codec)))
			b.Run(name+"/"+codec.String(), func(b *testing.B) {
				b.SetBytes(4 * rows * length)
				for b.Loop() {
					readColumn(b, data, rows, batch)
				}
			})
		}
	}
}

func readColumn(b *testing.B, data []byte, rows, batch int) {
	b.Helper()
	c, err := openChunk(b, data, 0, memory.DefaultAllocator)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	for range rows / batch {
		arr, err := c.Read(batch)
		if err != nil {
			b.Fatal(err)
		}
		arr.Release()
	}
}
