// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/apache/arrow-go/v18/arrow/memory"
	pq "github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	ice "github.com/apache/iceberg-go"
	"github.com/google/go-cmp/cmp"

	"github.com/kubeflow/datacache/cacheserver/source"
	"github.com/kubeflow/datacache/cacheserver/source/parquet"
	"github.com/kubeflow/datacache/test/kit/icetest"
	"github.com/kubeflow/datacache/test/kit/parquettest"
	"github.com/kubeflow/datacache/test/kit/s3test"
	"github.com/kubeflow/datacache/test/kit/seedtest"
)

// inOrder returns the rows of splits as JSON, in order.
func inOrder(t *testing.T, tbl *Table, splits []source.Split) []string {
	t.Helper()
	var out []string
	for _, s := range splits {
		f, err := tbl.Fetch(t.Context(), s, 0)
		if err != nil {
			t.Fatalf("rows %d to %d: %v", s.First, s.End(), err)
		}
		for b, err := range f.Batches(t.Context(), nil) {
			if err != nil {
				t.Fatalf("rows %d to %d: %v", s.First, s.End(), err)
			}
			text, err := b.MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}
			var rows []json.RawMessage
			if err := json.Unmarshal(text, &rows); err != nil {
				t.Fatal(err)
			}
			for i, r := range rows {
				if b.Keep == nil || bitutil.BitIsSet(b.Keep, i) {
					out = append(out, string(r))
				}
			}
			b.Release()
		}
		f.Close()
	}
	return out
}

// cutAnywhere divides splits into pieces at random rows.
func cutAnywhere(random *rand.Rand, splits []source.Split) []source.Split {
	var pieces []source.Split
	for _, s := range splits {
		for at := int64(0); at < s.Rows; {
			n := min(1+random.Int64N(s.Rows), s.Rows-at)
			pieces = append(pieces, s.Part(at, n, 1))
			at += n
		}
	}
	return pieces
}

// TestPieces reads tables by pieces of their row groups: the rows must be those of the whole row groups, in the same order, with any
// deletes, filters and partitions.
func TestPieces(t *testing.T) {
	w := icetest.Local(t)
	tables := map[string]string{
		"plain": w.Plain("plain", 2, 2, 300, 100).Metadata(), "primitives": w.Primitives("primitives", 2).Metadata(),
		"nested": w.Nested("nested", 2).Metadata(), "partitions": w.ByCategory("partitions", 2).Metadata(),
		"positions": w.Deleted("positions", 2).Metadata(), "vectors": w.Deleted("vectors", 3).Metadata(),
		"equal": w.EqualDeleted("equal", 2).Metadata(), "evolved": w.Evolved("evolved", 2).Metadata(),
	}
	for _, index := range []bool{false, true} {
		made := w.Create(fmt.Sprintf("mixed %t", index), 2, mixedSchema())
		tables[fmt.Sprintf("mixed, page index %t", index)] = addFile(t, made, mixedFile(t, 5000, pq.WithPageIndexEnabled(index)), 5000, nil)
	}
	random := seedtest.New(t)
	for name, location := range tables {
		for _, filter := range []string{"", "id > 7"} {
			t.Run(name+" "+filter, func(t *testing.T) {
				tbl := openTable(t, location, Selection{Filter: filter})
				splits := planOf(t, tbl)
				want := inOrder(t, tbl, splits)
				for range seedtest.Cases(2, 5) {
					if diff := cmp.Diff(want, inOrder(t, openTable(t, location, Selection{Filter: filter}), cutAnywhere(random, splits))); diff != "" {
						t.Fatalf("rows (-whole +pieces):\n%.2000s", diff)
					}
				}
			})
		}
	}
}

// TestPieceReadsItsPages counts the bytes read for one of two halves of a row group.
func TestPieceReadsItsPages(t *testing.T) {
	server := s3test.Start(t)
	data := mixedFile(t, 100_000, pq.WithPageIndexEnabled(true), pq.WithDataPageSize(8<<10))
	server.Put("lake", "mixed.parquet", data)
	made := icetest.OnS3(t, server, "lake").Create("t", 2, mixedSchema())
	metadata := addFileAt(t, made, "s3://lake/mixed.parquet", int64(len(data)), 100_000, nil)
	tbl, err := Open(t.Context(), s3Store(t, server), Location{Metadata: metadata}, Selection{Columns: []string{"id", "text", "tokens"}})
	if err != nil {
		t.Fatal(err)
	}
	split := planOf(t, tbl)[0]
	read := func(s source.Split) (n int64) {
		server.Forget()
		f, err := tbl.Fetch(t.Context(), s, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for b, err := range f.Batches(t.Context(), nil) {
			if err != nil {
				t.Fatal(err)
			}
			b.Release()
		}
		for _, r := range server.Requests() {
			n += r.Bytes
		}
		return n
	}
	whole, half := read(split), read(split.Part(50_000, 50_000, 1))
	t.Logf("%d bytes of the whole row group, %d of a half", whole, half)
	if half > whole*55/100 {
		t.Errorf("%d bytes were read for a half, the whole has %d", half, whole)
	}
}

// TestBadPiece requests rows that the row group does not have.
func TestBadPiece(t *testing.T) {
	made := icetest.Local(t).Plain("t", 2, 1, 100, 100)
	tbl := openTable(t, made.Metadata(), Selection{})
	whole := planOf(t, tbl)[0]
	for _, s := range []source.Split{whole.Part(50, 51, 1), whole.Part(-1, 10, 1), whole.Part(0, -1, 1)} {
		_, err := readSplit(t, tbl, s)
		wantError(t, err, whole.File, "no such row group")
	}
}

func mixedSchema() *ice.Schema {
	return ice.NewSchema(0,
		ice.NestedField{ID: 1, Name: "id", Type: ice.PrimitiveTypes.Int64},
		ice.NestedField{ID: 2, Name: "text", Type: ice.PrimitiveTypes.String},
		ice.NestedField{ID: 3, Name: "tokens", Type: &ice.ListType{ElementID: 4, Element: ice.PrimitiveTypes.Int32}},
		ice.NestedField{ID: 5, Name: "both", Type: &ice.StructType{FieldList: []ice.NestedField{{ID: 6, Name: "a", Type: ice.PrimitiveTypes.Int64}}}},
	)
}

// mixedFile returns a file of one row group with plain values, a dictionary, lists and a struct, with nulls in each.
func mixedFile(t *testing.T, rows int, properties ...pq.WriterProperty) []byte {
	t.Helper()
	field := func(id int, name string, to arrow.DataType) arrow.Field {
		return arrow.Field{Name: name, Type: to, Nullable: true, Metadata: arrow.NewMetadata([]string{parquet.FieldIDKey}, []string{fmt.Sprint(id)})}
	}
	schema := arrow.NewSchema([]arrow.Field{
		field(1, "id", arrow.PrimitiveTypes.Int64), field(2, "text", arrow.BinaryTypes.String),
		field(3, "tokens", arrow.ListOfField(field(4, "element", arrow.PrimitiveTypes.Int32))),
		field(5, "both", arrow.StructOf(field(6, "a", arrow.PrimitiveTypes.Int64))),
	}, nil)
	var text strings.Builder
	for i := range rows {
		null := func(every int, value string) string {
			if i%every == 3 {
				return "null"
			}
			return value
		}
		tokens := strings.Trim(strings.ReplaceAll(fmt.Sprint(make([]int, i%5)), "0", fmt.Sprint(i)), "[]")
		fmt.Fprintf(&text, `{"id":%s,"text":%s,"tokens":%s,"both":%s}`, null(11, fmt.Sprint(i)), null(7, fmt.Sprintf(`"text %d"`, i%50)),
			null(13, "["+strings.ReplaceAll(tokens, " ", ",")+"]"), null(17, fmt.Sprintf(`{"a":%d}`, i)))
	}
	rec, _, err := array.RecordFromJSON(memory.DefaultAllocator, schema, strings.NewReader(text.String()), array.WithMultipleDocs())
	if err != nil {
		t.Fatal(err)
	}
	defer rec.Release()
	properties = append([]pq.WriterProperty{pq.WithDataPageSize(1000), pq.WithBatchSize(64), pq.WithMaxRowGroupLength(1 << 30), pq.WithDictionaryDefault(false), pq.WithDictionaryFor("text", true)}, properties...)
	return parquettest.Write(t, rec, pq.NewWriterProperties(properties...), pqarrow.DefaultWriterProps())
}
