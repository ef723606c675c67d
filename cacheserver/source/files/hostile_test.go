// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	pqfile "github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/google/go-cmp/cmp"

	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/source"
	"github.com/kubeflow/datacache/test/kit/parquettest"
	"github.com/kubeflow/datacache/test/kit/seedtest"
)

// hostileSchema has a column of each kind that is read in a way of its own.
var hostileSchema = arrow.NewSchema([]arrow.Field{
	{Name: "id", Type: arrow.PrimitiveTypes.Int64},
	{Name: "text", Type: arrow.BinaryTypes.String, Nullable: true},
	{Name: "tokens", Type: arrow.ListOf(arrow.PrimitiveTypes.Int32), Nullable: true},
	{Name: "place", Type: arrow.StructOf(arrow.Field{Name: "x", Type: arrow.PrimitiveTypes.Float64}, arrow.Field{Name: "y", Type: arrow.BinaryTypes.Binary}), Nullable: true},
	{Name: "price", Type: &arrow.Decimal128Type{Precision: 10, Scale: 2}},
	{Name: "time", Type: arrow.FixedWidthTypes.Timestamp_us},
	{Name: "hash", Type: &arrow.FixedSizeBinaryType{ByteWidth: 3}, Nullable: true},
	{Name: "hashes", Type: arrow.StructOf(arrow.Field{Name: "h", Type: &arrow.FixedSizeBinaryType{ByteWidth: 3}, Nullable: true}), Nullable: true},
	{Name: "vector", Type: arrow.FixedSizeListOf(3, arrow.PrimitiveTypes.Float32)},
}, nil)

// hostileFile is a file of few rows with the layout that seed chooses.
func hostileFile(t *testing.T, r *rand.Rand) []byte {
	t.Helper()
	var text strings.Builder
	for i := range 60 {
		hash := `"YWJj"`
		if i%3 == 0 {
			hash = "null"
		}
		fmt.Fprintf(&text, `{"id":%d,"text":"text %d","tokens":[%d,2],"place":{"x":%d.5,"y":"YWJj"},"price":"%d.25","time":%d,"hash":%s,"hashes":{"h":%s},"vector":[1,2,3]}`,
			i, i%7, i, i, i, i, hash, hash)
	}
	rec, _, err := array.RecordFromJSON(memory.DefaultAllocator, hostileSchema, strings.NewReader("["+strings.ReplaceAll(text.String(), "}{\"id", "},{\"id")+"]"))
	if err != nil {
		t.Fatal(err)
	}
	defer rec.Release()
	codecs := []compress.Compression{compress.Codecs.Uncompressed, compress.Codecs.Snappy, compress.Codecs.Zstd, compress.Codecs.Gzip, compress.Codecs.Brotli, compress.Codecs.Lz4Raw}
	properties := []parquet.WriterProperty{
		parquet.WithDataPageVersion([]parquet.DataPageVersion{parquet.DataPageV1, parquet.DataPageV2}[r.IntN(2)]), parquet.WithCompression(codecs[r.IntN(len(codecs))]),
		parquet.WithDictionaryDefault(r.IntN(2) == 0), parquet.WithPageIndexEnabled(r.IntN(2) == 0), parquet.WithDataPageSize(200), parquet.WithBatchSize(20), parquet.WithMaxRowGroupLength(40),
	}
	return parquettest.Write(t, rec, parquet.NewWriterProperties(properties...), pqarrow.NewArrowWriterProperties(pqarrow.WithStoreSchema()))
}

// footerAt is where the footer of a file starts.
func footerAt(data []byte) int {
	return len(data) - 8 - int(binary.LittleEndian.Uint32(data[len(data)-8:]))
}

// closed ends the pages of a file with a footer.
func closed(pages, footer []byte) []byte {
	return slices.Concat(pages, footer, binary.LittleEndian.AppendUint32(nil, uint32(len(footer))), []byte("PAR1"))
}

// hostileFooter returns data with one to three values of its footer replaced.
func hostileFooter(r *rand.Rand, data []byte) []byte {
	at := footerAt(data)
	footer := data[at : len(data)-8]
	spots, _ := spotsOf(footer)
	chosen := make([]spot, 1+r.IntN(3))
	for i := range chosen {
		chosen[i] = spots[r.IntN(len(spots))]
	}
	slices.SortFunc(chosen, func(a, b spot) int { return b.at - a.at })
	for _, s := range slices.CompactFunc(chosen, func(a, b spot) bool { return a.at == b.at }) {
		footer = extreme(r, footer, s) // those before it keep their places
	}
	return closed(data[:at], footer)
}

// hostilePage returns data with one value of a page's header replaced, and a footer that has the new places of all pages.
func hostilePage(t *testing.T, r *rand.Rand, data []byte) []byte {
	t.Helper()
	f, err := pqfile.NewParquetReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	meta := f.MetaData()
	group := meta.RowGroups[r.IntN(len(meta.RowGroups))]
	chunk := group.Columns[r.IntN(len(group.Columns))]
	at := chunk.MetaData.DataPageOffset
	if dictionary := chunk.MetaData.DictionaryPageOffset; dictionary != nil && r.IntN(2) == 0 {
		at = *dictionary
	}
	spots, length := spotsOf(data[at:])
	header := extreme(r, data[at:at+int64(length)], spots[r.IntN(len(spots))])
	more := int64(len(header) - length)
	for _, g := range meta.RowGroups {
		for _, c := range g.Columns {
			c.OffsetIndexOffset, c.OffsetIndexLength, c.ColumnIndexOffset, c.ColumnIndexLength = nil, nil, nil, nil
			if c.MetaData.DataPageOffset > at {
				c.MetaData.DataPageOffset += more
			}
			if d := c.MetaData.DictionaryPageOffset; d != nil && *d > at {
				*d += more
			}
		}
	}
	chunk.MetaData.TotalCompressedSize += more
	var footer bytes.Buffer
	if _, err := meta.WriteTo(&footer, nil); err != nil {
		t.Fatal(err)
	}
	return closed(slices.Concat(data[:at], header, data[at+int64(length):footerAt(data)]), footer.Bytes())
}

// hostileIndex returns data with a value of an offset index replaced, if it has any.
func hostileIndex(t *testing.T, r *rand.Rand, data []byte) []byte {
	t.Helper()
	f, err := pqfile.NewParquetReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	meta := f.MetaData()
	columns := meta.RowGroups[0].Columns
	chunk := columns[r.IntN(len(columns))]
	if chunk.OffsetIndexOffset == nil {
		return data
	}
	at, length := *chunk.OffsetIndexOffset, *chunk.OffsetIndexLength
	spots, _ := spotsOf(data[at:])
	index := extreme(r, data[at:at+int64(length)], spots[r.IntN(len(spots))])
	*chunk.OffsetIndexOffset, *chunk.OffsetIndexLength = int64(footerAt(data)), int32(len(index))
	var footer bytes.Buffer
	if _, err := meta.WriteTo(&footer, nil); err != nil {
		t.Fatal(err)
	}
	return closed(slices.Concat(data[:footerAt(data)], index), footer.Bytes())
}

// Limits of what reading one file may take. mostPages is what the pages may take together; a file has 60 rows, so a batch of it is small.
const (
	mostPages = 8 << 20
	mostHeap  = 96 << 20
)

// FuzzHostileFiles reads files in which fields of footers, page headers and offset indexes have extreme values, as head and data nodes do:
// the file is refused, or all its rows are those that arrow-go reads; never with a panic, and within a bound of memory. A plain test run uses
// the first seeds, -fuzz any others.
func FuzzHostileFiles(f *testing.F) {
	for seed := range seedtest.Cases[uint64](40, 200) {
		f.Add(seed)
	}
	for _, seed := range []uint64{298, 1125, 1271, 1911, 5064} { // that found defects
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 0))
		data := hostileFile(t, r)
		var kind string
		switch r.IntN(5) {
		case 0:
			kind, data = "page", hostilePage(t, r, data)
		case 1:
			kind, data = "offset index", hostileIndex(t, r, data)
		default:
			kind, data = "footer", hostileFooter(r, data)
		}
		name := filepath.Join(t.TempDir(), "a.parquet")
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		got, columns, err := readHostile(t.Context(), name, r.Int64N(40))
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > mostHeap {
			t.Errorf("seed %d, %s: %d bytes were allocated, want at most %d", seed, kind, n, mostHeap)
		}
		if err != nil {
			if strings.Contains(err.Error(), "runtime error") {
				t.Errorf("seed %d, %s: %v", seed, kind, err)
			}
			t.Logf("%s: %v", kind, err)
			return
		}
		want, err := readByArrow(t.Context(), data, columns)
		if err != nil {
			t.Logf("%s: arrow-go: %v", kind, err)
			return
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("seed %d, %s: rows differ from those of arrow-go:\n%s", seed, kind, diff)
		}
	})
}

// readHostile plans and reads a file in parts of its row groups that are cut at a row, and returns its rows as JSON and its columns.
func readHostile(ctx context.Context, name string, cut int64) (rows, columns []string, err error) {
	s := &Source{Store: objstore.New(objstore.Config{}), Location: Location{URIs: []string{name}}}
	plan, err := s.Plan(ctx, nil, nil)
	if err != nil {
		return nil, nil, err
	}
	for _, f := range plan.Schema.Fields() {
		columns = append(columns, f.Name)
	}
	opened, err := s.Open(ctx, plan.Version, &source.Buffers{})
	if err != nil {
		return nil, nil, err
	}
	for _, split := range plan.Splits {
		cut := min(cut, split.Rows)
		for _, part := range []source.Split{split.Part(0, cut, split.Bytes), split.Part(cut, split.Rows-cut, split.Bytes)} {
			more, err := readSplit(ctx, opened, part)
			if err != nil {
				return nil, nil, err
			}
			rows = append(rows, more...)
		}
	}
	return rows, columns, nil
}

func readSplit(ctx context.Context, from source.Dataset, split source.Split) (rows []string, err error) {
	fetched, err := from.Fetch(ctx, split, 0)
	if err != nil {
		return nil, err
	}
	defer fetched.Close()
	used := int64(0)
	room := func(n int64) error {
		if used+n > mostPages {
			return errors.New("no room")
		}
		used += n
		return nil
	}
	for batch, err := range fetched.Batches(ctx, room) {
		if err != nil {
			return nil, err
		}
		more, err := jsonOf(batch.RecordBatch)
		batch.Release()
		if err != nil {
			return nil, err
		}
		rows = append(rows, more...)
	}
	return rows, nil
}

// jsonOf returns the rows of a batch as JSON.
func jsonOf(rec arrow.RecordBatch) ([]string, error) {
	text, err := rec.MarshalJSON()
	if err != nil {
		return nil, err
	}
	rows := strings.Split(strings.Trim(string(text), "[]\n"), "\n,")
	return rows, nil
}

// readByArrow reads columns of a file with arrow-go alone.
func readByArrow(ctx context.Context, data []byte, columns []string) (rows []string, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	f, err := pqfile.NewParquetReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	reader, err := pqarrow.NewFileReader(f, pqarrow.ArrowReadProperties{}, memory.DefaultAllocator)
	if err != nil {
		return nil, err
	}
	table, err := reader.ReadTable(ctx)
	if err != nil {
		return nil, err
	}
	defer table.Release()
	all := array.NewTableReader(table, 0)
	defer all.Release()
	for all.Next() {
		rec := all.RecordBatch()
		var picked []arrow.Array
		var fields []arrow.Field
		for _, name := range columns {
			at := rec.Schema().FieldIndices(name)
			if len(at) != 1 {
				return nil, fmt.Errorf("%d columns %q", len(at), name)
			}
			picked, fields = append(picked, rec.Column(at[0])), append(fields, rec.Schema().Field(at[0]))
		}
		more, err := jsonOf(array.NewRecordBatch(arrow.NewSchema(fields, nil), picked, rec.NumRows()))
		if err != nil {
			return nil, err
		}
		rows = append(rows, more...)
	}
	return rows, all.Err()
}
