// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"bytes"
	"errors"
	"hash/crc32"
	"io"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
)

// split returns the bytes of each page of a file's column.
func split(t *testing.T, data []byte) (list [][]byte) {
	t.Helper()
	chunk := chunkOf(t, data, 0)
	p := pages{from: chunk.File, at: chunk.Offset, end: chunk.Offset + chunk.Length, most: chunk.PageBytes, mem: memory.DefaultAllocator}
	defer p.close()
	for {
		at := p.at
		if _, err := p.next(); errors.Is(err, io.EOF) {
			return list
		} else if err != nil {
			t.Fatal(err)
		}
		list = append(list, data[at:p.at])
	}
}

// TestDictionaryAfterPlainPages checks that the memory of the dictionary is freed at a page of plain values, and that a page of
// indices may still follow, as the format allows.
func TestDictionaryAfterPlainPages(t *testing.T) {
	for name, test := range map[string]struct {
		field  arrow.Field
		append func(array.Builder, int)
	}{
		"fixed": {arrow.Field{Name: "c", Type: arrow.PrimitiveTypes.Int64}, func(b array.Builder, i int) { b.(*array.Int64Builder).Append(int64(i % 100)) }},
		"text":  {arrow.Field{Name: "c", Type: arrow.BinaryTypes.Binary}, func(b array.Builder, i int) { b.(*array.BinaryBuilder).Append([]byte{byte(i % 100), 7}) }},
	} {
		t.Run(name, func(t *testing.T) {
			builder := array.NewBuilder(memory.DefaultAllocator, test.field.Type)
			for i := range 1000 {
				test.append(builder, i)
			}
			rows := builder.NewArray()
			encoded := write(t, test.field, rows, 1000, parquet.NewWriterProperties(parquet.WithBatchSize(10), parquet.WithDataPageSize(50)))
			plain := write(t, test.field, rows, 1000, parquet.NewWriterProperties(parquet.WithDictionaryDefault(false)))
			pages := split(t, encoded)
			if len(pages) < 3 {
				t.Fatalf("%d pages, want a dictionary and several of indices", len(pages))
			}
			data := bytes.Join(append(append(append([][]byte{}, pages...), split(t, plain)...), pages[1:]...), nil)

			mem := memory.NewCheckedAllocator(dirty{memory.DefaultAllocator})
			defer mem.AssertSize(t, 0)
			chunk := chunkOf(t, encoded, 0)
			chunk.File, chunk.Offset, chunk.Length = bytes.NewReader(data), 0, int64(len(data))
			chunk.Rows, chunk.Values, chunk.PageBytes = 3000, 3000, int64(len(data))
			c, err := Open(chunk, mem)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			for part, kept := range []int{1, 0, 1} {
				got, err := c.Read(1000)
				if err != nil {
					t.Fatal(err)
				}
				if !array.Equal(got, rows) {
					t.Errorf("part %d: other values", part)
				}
				if len(c.pages.kept) != kept {
					t.Errorf("part %d: the column holds %d dictionaries, want %d", part, len(c.pages.kept), kept)
				}
				got.Release()
			}
		})
	}
}

// counting is an allocator that records the maximum allocated at the same time.
type counting struct {
	memory.Allocator
	now, most int
}

func (c *counting) Allocate(size int) []byte {
	c.now += size
	c.most = max(c.most, c.now)
	return c.Allocator.Allocate(size)
}

func (c *counting) Free(b []byte) {
	c.now -= len(b)
	c.Allocator.Free(b)
}

// TestLargePagesAreStreamed checks that the compressed and the uncompressed form of a large page are not in memory together.
func TestLargePagesAreStreamed(t *testing.T) {
	const size = 5 << 20
	d := newDice(t, 5)
	want := make([]byte, size)
	for i := range want {
		want[i] = byte(d.Uint64())
	}
	for _, kind := range []compress.Compression{compress.Codecs.Zstd, compress.Codecs.Gzip} {
		t.Run(kind.String(), func(t *testing.T) {
			codec, err := compress.GetCodec(kind)
			if err != nil {
				t.Fatal(err)
			}
			body := codec.Encode(nil, want)
			read := func(body []byte, uncompressed int, sum *uint32) ([]byte, int, error) {
				mem := &counting{Allocator: memory.DefaultAllocator}
				p := pages{from: bytes.NewReader(body), end: int64(len(body)), most: 2 * size, codec: codec, streams: true, mem: mem}
				h := header{}
				h.page.set(pageCompressed, int64(len(body)))
				if sum != nil {
					h.page.set(pageCRC, int64(*sum))
				}
				pg := page{kind: kindDataV1}
				err := p.content(&pg, &h, uncompressed)
				return pg.data, mem.most, err
			}
			sum := crc32.ChecksumIEEE(body)
			got, most, err := read(body, size, &sum)
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("read: %v, values are the same: %t", err, bytes.Equal(got, want))
			}
			if most > size+1<<20 {
				t.Errorf("%d bytes were in use to read a page of %d", most, size)
			}
			for name, uncompressed := range map[string]int{"more": size - 1, "less": size + 1} {
				if _, _, err := read(body, uncompressed, nil); err == nil {
					t.Errorf("a page with %s bytes than its header says is no error", name)
				}
			}
			damaged := bytes.Clone(body)
			damaged[len(damaged)/2] ^= 1
			if _, _, err := read(damaged, size, &sum); !errors.Is(err, ErrChecksum) {
				t.Errorf("a changed byte: %v, want %v", err, ErrChecksum)
			}
			if _, _, err := read(body[:len(body)-1], size, nil); err == nil {
				t.Error("a page that ends early is no error")
			}
		})
	}
}

// TestZstdFrameLargerThanItsPage checks that a frame can't make the decoder allocate more memory than the page's header states.
func TestZstdFrameLargerThanItsPage(t *testing.T) {
	codec, err := compress.GetCodec(compress.Codecs.Zstd)
	if err != nil {
		t.Fatal(err)
	}
	body := codec.Encode(nil, make([]byte, 64<<20))
	p := pages{codec: codec, mem: memory.DefaultAllocator}
	if _, err := p.uncompress(body, 1000, true); err == nil {
		t.Error("no error")
	}
	if len(p.plain) != 1000 {
		t.Errorf("%d bytes were taken for a page of 1000", len(p.plain))
	}
}
