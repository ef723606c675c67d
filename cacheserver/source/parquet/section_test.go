// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package parquet_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"testing"

	pq "github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/metadata"
	"github.com/apache/thrift/lib/go/thrift"
	"github.com/google/go-cmp/cmp"

	"github.com/kubeflow/datacache/cacheserver/source/parquet"
	"github.com/kubeflow/datacache/cacheserver/source/parquet/decode"
	"github.com/kubeflow/datacache/test/kit/parquettest"
)

const (
	groupRows = 100
	fileRows  = 250 // two row groups and a half
)

var names = []string{"id", "text", "tokens", "place", "counts"}

// layouts are different ways to store the same rows in a file.
var layouts = map[string][]pq.WriterProperty{
	"version 1":               {pq.WithDataPageVersion(pq.DataPageV1)},
	"version 1, page index":   {pq.WithDataPageVersion(pq.DataPageV1), pq.WithPageIndexEnabled(true), pq.WithCompression(compress.Codecs.Snappy)},
	"version 2":               {pq.WithDataPageVersion(pq.DataPageV2), pq.WithCompression(compress.Codecs.Gzip)},
	"version 2, page index":   {pq.WithDataPageVersion(pq.DataPageV2), pq.WithPageIndexEnabled(true), pq.WithCompression(compress.Codecs.Zstd)},
	"dictionary, page index":  {pq.WithDictionaryDefault(true), pq.WithPageIndexEnabled(true)},
	"some with a page index":  {pq.WithPageIndexEnabledFor("id", true)},
	"one page, page index":    {pq.WithPageIndexEnabled(true), pq.WithDataPageSize(1 << 20), pq.WithBatchSize(1 << 20)},
	"codec LZ4, page index":   {pq.WithPageIndexEnabled(true), pq.WithCompression(compress.Codecs.Lz4Raw)},
	"codec brotli, no others": {pq.WithCompression(compress.Codecs.Brotli)},
}

// ranges are rows of a row group of a hundred: all, none, its edges, and some in the middle.
var ranges = [][2]int64{{0, 100}, {0, 1}, {99, 100}, {0, 0}, {42, 42}, {100, 100}, {7, 8}, {8, 16}, {37, 63}, {1, 99}}

// TestRowRanges reads ranges of rows of each row group, in every layout: the result must be exactly those rows, in order.
func TestRowRanges(t *testing.T) {
	for layout, properties := range layouts {
		data := write(t, arrowSchema(t, fields()), rows(0, fileRows), append(properties, pq.WithMaxRowGroupLength(groupRows))...)
		o := must(t, data, fields()...)
		if o.footer.Groups() != 3 || o.footer.Total() != fileRows || o.footer.FirstRow(2) != 200 {
			t.Fatalf("%s: %d row groups, %d rows, the third begins at row %d", layout, o.footer.Groups(), o.footer.Total(), o.footer.FirstRow(2))
		}
		for group := range 3 {
			for _, r := range ranges {
				first, end := min(r[0], o.footer.Rows(group)), min(r[1], o.footer.Rows(group))
				t.Run(fmt.Sprintf("%s, row group %d, rows %d to %d", layout, group, first, end), func(t *testing.T) {
					got, err := o.read(t, group, first, end)
					if err != nil {
						t.Fatal(err)
					}
					at := groupRows * group
					if diff := cmp.Diff(numbered(t, rows(at+int(first), at+int(end)), names...), append([]string{}, got...)); diff != "" {
						t.Errorf("rows (-want +got):\n%.2000s", diff)
					}
				})
			}
		}
	}
}

// TestRangesOfPages checks that with a page index only the dictionary and the pages of the range are read, and without one the column
// chunk.
func TestRangesOfPages(t *testing.T) {
	for name, tt := range map[string]struct {
		index bool
		want  func(bytes, whole int64) bool
	}{
		"page index":    {true, func(bytes, whole int64) bool { return bytes < whole*2/5 }},
		"no page index": {false, func(bytes, whole int64) bool { return bytes == whole }},
	} {
		t.Run(name, func(t *testing.T) {
			data := write(t, arrowSchema(t, fields()), rows(0, groupRows), pq.WithPageIndexEnabled(tt.index))
			for _, column := range []string{"id", "text", "tokens"} {
				o := must(t, data, field(t, column))
				size := func(first, end int64) (n int64) {
					section, err := o.projection.Locate(t.Context(), o.file, 0, first, end)
					if err != nil {
						t.Fatal(err)
					}
					ranges, err := o.projection.Ranges(section)
					if err != nil {
						t.Fatal(err)
					}
					for _, r := range ranges {
						n += r.Length
					}
					return n
				}
				if part, whole := size(50, 58), size(0, groupRows); !tt.want(part, whole) {
					t.Errorf("column %s: %d bytes for 8 of 100 rows, the whole chunk has %d", column, part, whole)
				}
			}
		})
	}
}

// TestWrongOffsetIndex reads a file whose offset index states wrong rows for its pages: this must be an error, never wrong rows.
func TestWrongOffsetIndex(t *testing.T) {
	o := must(t, write(t, arrowSchema(t, fields()), rows(0, groupRows), pq.WithPageIndexEnabled(true)), field(t, "id"), field(t, "tokens"))
	section, err := o.projection.Locate(t.Context(), o.file, 0, 40, 60)
	if err != nil {
		t.Fatal(err)
	}
	if len(section.Pages) != 2 {
		t.Errorf("pages of %d columns, want 2", len(section.Pages))
	}
	for leaf, pages := range section.Pages {
		for change, wrong := range map[string]func(*parquet.SectionPages){
			"one row later":  func(p *parquet.SectionPages) { p.Row++; p.Rows-- },
			"one row before": func(p *parquet.SectionPages) { p.Row--; p.Rows++ },
			"one row more":   func(p *parquet.SectionPages) { p.Rows++ },
			"one row less":   func(p *parquet.SectionPages) { p.Rows-- },
		} {
			t.Run(fmt.Sprint(leaf, change), func(t *testing.T) {
				changed := pages
				wrong(&changed)
				section.Pages[leaf] = changed
				defer func() { section.Pages[leaf] = pages }()
				_, err := o.readSection(t, section)
				wantError(t, err, "column")
			})
		}
	}
}

// TestChecksums flips a bit in the body of one page, in a file whose pages have CRCs: rows of that page yield an error that names the
// column, also for columns that pqarrow decodes; with a page index, rows of other pages can be read.
func TestChecksums(t *testing.T) {
	good, pages := withChecksums(t, write(t, arrowSchema(t, fields()), rows(0, groupRows), pq.WithPageIndexEnabled(true), pq.WithMaxRowGroupLength(groupRows)))
	if _, err := must(t, good, fields()...).read(t, 0, 0, groupRows); err != nil {
		t.Fatalf("before anything was flipped: %v", err)
	}
	direct := map[string]bool{"id": true, "text": true, "tokens": true} // package decode decodes these, pqarrow the others
	for leaf, name := range []string{"id", "text", "tokens", "place", "place", "place", "counts", "counts"} {
		t.Run(fmt.Sprintf("leaf %d of %s", leaf, name), func(t *testing.T) {
			of := pages[leaf]
			if len(of) < 4 {
				t.Fatalf("%d pages, want several", len(of))
			}
			bad := bytes.Clone(good)
			bad[of[2].body] ^= 0x10
			o := must(t, bad, field(t, name))
			for _, first := range []int64{0, of[2].row} {
				_, err := o.read(t, 0, first, groupRows)
				wantError(t, err, `column "`+name, "checksum does not match", "restore")
				if !errors.Is(err, decode.ErrChecksum) {
					t.Errorf("error %v is not decode.ErrChecksum", err)
				}
			}
			got, err := o.read(t, 0, of[3].row, groupRows)
			if !direct[name] {
				wantError(t, err, "checksum does not match")
				return
			}
			if err != nil {
				t.Fatalf("rows of other pages: %v", err)
			}
			if diff := cmp.Diff(numbered(t, rows(int(of[3].row), groupRows), name), got); diff != "" {
				t.Errorf("rows of other pages (-want +got):\n%.2000s", diff)
			}
		})
	}
}

// page is a data page of a file.
type page struct {
	offset, size int64
	body         int64 // offset of the page's body
	row          int64 // index of its first row in the row group
}

// withChecksums adds a CRC to every page header of a file with one row group, which arrow-go does not do, and returns the data pages
// of each column.
func withChecksums(t *testing.T, data []byte) ([]byte, [][]page) {
	t.Helper()
	meta := metadataOf(t, data)
	out := bytes.NewBufferString("PAR1")
	var pages [][]page
	for _, chunk := range meta.RowGroups[0].Columns {
		md := chunk.MetaData
		index := metadata.NewOffsetIndex(data[*chunk.OffsetIndexOffset:][:*chunk.OffsetIndexLength], nil, nil).GetPageLocations()
		at := index[0].Offset
		if md.IsSetDictionaryPageOffset() {
			at = *md.DictionaryPageOffset
		}
		begin, end := out.Len(), at+md.TotalCompressedSize
		var of []page
		for at < end {
			head, size := headerOf(t, data[at:])
			body := data[at+int64(len(head)):][:size]
			p := page{offset: int64(out.Len())}
			out.Write(parquettest.WithCRC(head, crc32.ChecksumIEEE(body)))
			p.body = int64(out.Len())
			out.Write(body)
			if p.size = int64(out.Len()) - p.offset; at == index[len(of)].Offset {
				p.row = index[len(of)].FirstRowIndex
				of = append(of, p)
			} else {
				*md.DictionaryPageOffset = p.offset
			}
			at += int64(len(head)) + size
		}
		md.DataPageOffset, md.TotalCompressedSize, chunk.FileOffset = of[0].offset, int64(out.Len()-begin), int64(begin)
		pages = append(pages, of)
	}
	for i, chunk := range meta.RowGroups[0].Columns {
		text := offsetIndex(t, pages[i])
		*chunk.OffsetIndexOffset, *chunk.OffsetIndexLength = int64(out.Len()), int32(len(text))
		chunk.ColumnIndexOffset, chunk.ColumnIndexLength = nil, nil
		out.Write(text)
	}
	return closed(t, out.Bytes(), meta), pages
}

// headerOf returns the page header at the start of text, and the length of the page's body.
func headerOf(t *testing.T, text []byte) (head []byte, body int64) {
	t.Helper()
	buffer := thrift.NewTMemoryBuffer()
	buffer.Write(text)
	if err := thrift.SkipDefaultDepth(t.Context(), thrift.NewTCompactProtocolConf(buffer, nil), thrift.STRUCT); err != nil {
		t.Fatal(err)
	}
	head = text[:len(text)-buffer.Len()]
	at := 0
	for range 3 { // type, uncompressed and compressed size: each is a byte with id and type, then a number
		n := 0
		body, n = binary.Varint(head[at+1:])
		at += 1 + n
	}
	return head, body
}

// offsetIndex encodes an OffsetIndex in Thrift's compact protocol.
func offsetIndex(t *testing.T, pages []page) []byte {
	t.Helper()
	ctx, buffer := t.Context(), thrift.NewTMemoryBuffer()
	p := thrift.NewTCompactProtocolConf(buffer, nil)
	locations := func(ctx context.Context) error {
		err := p.WriteListBegin(ctx, thrift.STRUCT, len(pages))
		for _, at := range pages {
			err = errors.Join(err, p.WriteStructBegin(ctx, "PageLocation"),
				p.WriteFieldBegin(ctx, "offset", thrift.I64, 1), p.WriteI64(ctx, at.offset),
				p.WriteFieldBegin(ctx, "compressed_page_size", thrift.I32, 2), p.WriteI32(ctx, int32(at.size)),
				p.WriteFieldBegin(ctx, "first_row_index", thrift.I64, 3), p.WriteI64(ctx, at.row),
				p.WriteFieldStop(ctx), p.WriteStructEnd(ctx))
		}
		return errors.Join(err, p.WriteListEnd(ctx))
	}
	err := errors.Join(p.WriteStructBegin(ctx, "OffsetIndex"), p.WriteFieldBegin(ctx, "page_locations", thrift.LIST, 1),
		locations(ctx), p.WriteFieldStop(ctx), p.WriteStructEnd(ctx), p.Flush(ctx))
	if err != nil {
		t.Fatal(err)
	}
	return buffer.Bytes()
}
