// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	ice "github.com/apache/iceberg-go"

	"github.com/kubeflow/datacache/cacheserver/source"
	"github.com/kubeflow/datacache/test/kit/icetest"
)

// fetchFirst opens a table and fetches its first split.
func fetchFirst(t *testing.T, metadata string) (*Table, source.Fetched) {
	t.Helper()
	tbl := openTable(t, metadata, Selection{})
	f, err := tbl.Fetch(t.Context(), planOf(t, tbl)[0], 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return tbl, f
}

// TestDecoders counts the columns that pqarrow decodes: only those that are structs and maps.
func TestDecoders(t *testing.T) {
	w := icetest.Local(t)
	for name, tt := range map[string]struct {
		made    *icetest.Table
		general bool
	}{
		"plain":      {w.Plain("plain", 2, 1, 100, 100), false},
		"primitives": {w.Primitives("primitives", 2), false},
		"nested":     {w.Nested("nested", 2), true},
	} {
		t.Run(name, func(t *testing.T) {
			tbl, f := fetchFirst(t, tt.made.Metadata())
			for b, err := range f.Batches(t.Context(), nil) {
				if err != nil {
					t.Fatal(err)
				}
				b.Release()
			}
			report := f.Report()
			direct, general := report.Direct, report.General
			if want := len(tbl.Fields); direct+general != want {
				t.Errorf("%d and %d columns decoded of %d", direct, general, want)
			}
			if direct == 0 || general > 0 != tt.general {
				t.Errorf("%d columns by package decode, %d by pqarrow; want some of pqarrow's: %t", direct, general, tt.general)
			}
		})
	}
}

// TestDictionaryOfLongStrings reads a file of 1 MB that expands to 100 MB: it must be divided into several batches.
func TestDictionaryOfLongStrings(t *testing.T) {
	const rows, length = 100, 1 << 20
	schema := arrow.NewSchema([]arrow.Field{{Name: "text", Type: arrow.BinaryTypes.String, Nullable: true}}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer b.Release()
	for range rows {
		b.Field(0).(*array.StringBuilder).Append(strings.Repeat("x", length))
	}
	rec := b.NewRecordBatch()
	defer rec.Release()
	made := icetest.Local(t).Create("t", 2, ice.NewSchema(0, ice.NestedField{ID: 1, Name: "text", Type: ice.PrimitiveTypes.String}))
	_, f := fetchFirst(t, addFile(t, made, parquetOf(t, rec), rows, nil))
	total := int64(0)
	for batch, err := range f.Batches(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		if batch.NumRows()*length > int64(64<<20) {
			t.Errorf("a batch of %d rows of %d bytes, want at most %d bytes", batch.NumRows(), length, int64(64<<20))
		}
		total += batch.NumRows()
		batch.Release()
	}
	if total != rows {
		t.Errorf("%d rows, want %d", total, rows)
	}
}
