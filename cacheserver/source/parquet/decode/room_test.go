// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
)

// ledger is a Chunk.Room.
type ledger struct{ limit, used, peak int64 }

var errNoRoom = errors.New("no room")

func (l *ledger) room(n int64) error {
	if l.used+n > l.limit {
		return errNoRoom
	}
	l.used += n
	l.peak = max(l.peak, l.used)
	return nil
}

// TestRoomForPages reads a column chunk with one large page, in every codec and encoding: its memory must be reserved before it is allocated,
// and given back.
func TestRoomForPages(t *testing.T) {
	const rows, size = 5000, 5000 * 64
	builder := array.NewBuilder(memory.DefaultAllocator, arrow.BinaryTypes.Binary).(*array.BinaryBuilder)
	for i := range rows {
		builder.Append([]byte(strings.Repeat("x", 60) + fmt.Sprintf("%04d", i)))
	}
	values, field := builder.NewArray(), arrow.Field{Name: "c", Type: arrow.BinaryTypes.Binary}
	for _, codec := range []compress.Compression{compress.Codecs.Snappy, compress.Codecs.Gzip, compress.Codecs.Zstd, compress.Codecs.Brotli, compress.Codecs.Lz4Raw} {
		for _, version := range []parquet.DataPageVersion{parquet.DataPageV1, parquet.DataPageV2} {
			for encoding, atLeast := range map[parquet.Encoding]int64{
				parquet.Encodings.RLEDict: size + 8*rows, parquet.Encodings.Plain: size, parquet.Encodings.DeltaLengthByteArray: size + 8*rows, parquet.Encodings.DeltaByteArray: 8 * rows,
			} {
				t.Run(fmt.Sprintf("%s, version %d, %s", codec, version+1, encoding), func(t *testing.T) {
					dictionary := encoding == parquet.Encodings.RLEDict
					properties := []parquet.WriterProperty{
						parquet.WithCompression(codec), parquet.WithDataPageVersion(version), parquet.WithDictionaryDefault(dictionary),
						parquet.WithDataPageSize(8 << 20), parquet.WithDictionaryPageSizeLimit(8 << 20), parquet.WithBatchSize(rows),
					}
					if !dictionary {
						properties = append(properties, parquet.WithEncoding(encoding))
					}
					chunk := chunkOf(t, write(t, field, values, rows, parquet.NewWriterProperties(properties...)), 0)
					readsInRoom(t, chunk, rows, atLeast)
				})
			}
		}
	}
}

// readsInRoom reads a chunk of one page with as little room as it needs, which must be at least atLeast, and with one byte less.
func readsInRoom(t *testing.T, chunk Chunk, rows int, atLeast int64) {
	t.Helper()
	read := func(of *ledger, mem memory.Allocator) error {
		chunk.Room = of.room
		c, err := Open(chunk, mem)
		if err != nil {
			return err
		}
		defer c.Close()
		got, err := c.Read(rows)
		if err == nil {
			got.Release()
		}
		return err
	}
	free := &ledger{limit: 1 << 40}
	if err := read(free, memory.DefaultAllocator); err != nil {
		t.Fatal(err)
	}
	if free.peak < atLeast || free.peak > 2*atLeast+1<<20 {
		t.Errorf("%d bytes were reserved, want at least %d and not much more", free.peak, atLeast)
	}
	tight := &ledger{limit: free.peak}
	if err := read(tight, memory.DefaultAllocator); err != nil {
		t.Errorf("with %d bytes: %v", free.peak, err)
	}
	least := &ledger{limit: 1000}
	if err := read(least, bounded{dirty{memory.DefaultAllocator}, t, windowBytes}); !errors.Is(err, errNoRoom) || !strings.Contains(err.Error(), "bytes uncompressed") {
		t.Errorf("with 1000 bytes: error %v, want one that names the page's size", err)
	}
	if free.used != 0 || tight.used != 0 || least.used != 0 {
		t.Errorf("%d, %d and %d bytes were not given back", free.used, tight.used, least.used)
	}
}

// TestRoomForGeneralReaders checks what Verify says of the pages of a chunk: the largest one and the dictionary.
func TestRoomForGeneralReaders(t *testing.T) {
	builder := array.NewBuilder(memory.DefaultAllocator, arrow.PrimitiveTypes.Int64).(*array.Int64Builder)
	for i := range int64(1000) {
		builder.Append(i)
	}
	values, field := builder.NewArray(), arrow.Field{Name: "c", Type: arrow.PrimitiveTypes.Int64}
	for dictionary, want := range map[bool]int64{false: 8000, true: 8000 + 1250} {
		properties := parquet.NewWriterProperties(parquet.WithDictionaryDefault(dictionary), parquet.WithCompression(compress.Codecs.Zstd))
		room, err := Verify(chunkOf(t, write(t, field, values, 1000, properties), 0), memory.DefaultAllocator)
		if err != nil || room < want || room > want+100 {
			t.Errorf("dictionary %t: room for %d bytes, error %v, want about %d", dictionary, room, err, want)
		}
	}
}

// TestLevelLengths checks that levels of version 2 that are longer than their page are refused, also if the sum of their lengths is none of
// 64 bits.
func TestLevelLengths(t *testing.T) {
	for _, levels := range [][2]int64{{0, 0}, {3, 5}, {4, 5}, {9, 0}, {-1, 0}, {0, -1}, {math.MaxInt64, math.MaxInt64}, {math.MaxInt64, 2}, {2, math.MaxInt64}} {
		var h header
		for id, v := range map[int16]int64{pageKind: kindDataV2, pageUncompressed: 20, pageCompressed: 8} {
			h.page.set(id, v)
		}
		for id, v := range map[int16]int64{dataValues: 1, v2Encoding: 0, v2RepBytes: levels[0], v2DefBytes: levels[1]} {
			h.data.set(id, v)
		}
		_, err := h.describe()
		if fits := levels == [2]int64{} || levels == [2]int64{3, 5}; fits != (err == nil) {
			t.Errorf("levels of %d and %d bytes in a page of 8: error %v", levels[0], levels[1], err)
		}
	}
}
