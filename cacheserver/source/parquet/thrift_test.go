// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package parquet_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/parquet/metadata"
	ice "github.com/apache/iceberg-go"

	"github.com/kubeflow/datacache/cacheserver/source/parquet"
)

// TestSchemas reads footers whose schemas are no tree or exceed a limit: the error must say so before arrow-go sees the schema.
func TestSchemas(t *testing.T) {
	data := write(t, arrowSchema(t, fields()), rows(0, 10))
	children := func(of int, n int32) func(*metadata.FileMetaData) {
		return func(m *metadata.FileMetaData) { m.FileMetaData.Schema[of].NumChildren = &n }
	}
	root := metadataOf(t, data).FileMetaData.Schema[0].GetNumChildren()
	tests := map[string]struct {
		change func(*metadata.FileMetaData)
		want   string
	}{
		"unchanged":              {func(*metadata.FileMetaData) {}, ""},
		"2^31-1 columns":         {children(0, math.MaxInt32), "2147483647 children"},
		"a column too few":       {children(0, root-1), "children of no other"},
		"a column too many":      {children(0, root+1), "1 children more"},
		"negative children":      {children(0, -1), "-1 children"},
		"2^31-1 in a list":       {children(3, math.MaxInt32), `children of "tokens"`},
		"a group without an end": {children(len(metadataOf(t, data).FileMetaData.Schema)-1, 1), "0 elements follow"},
		"no columns":             {children(0, 0), "children of no other"},
		"no schema":              {func(m *metadata.FileMetaData) { m.FileMetaData.Schema = nil }, "schema"},
		"129 levels":             {groups(129), "nested more than 128 levels"},
		"65,536 columns":         {columns(65_536), "list of 65537 items"},
		"wide values": {func(m *metadata.FileMetaData) {
			width := int32(math.MaxInt32)
			m.FileMetaData.Schema[1].TypeLength = &width
		}, `"id" has values of 2147483647 bytes`},
		"long paths": {longPaths, "16777216 bytes"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			changed := withFooter(t, data, tt.change)
			err := readAll(t, changed)
			if tt.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			wantError(t, err, "data.parquet", "footer cannot be read", tt.want, "restore or rewrite")
			_, err = parquet.FileRows(t.Context(), open(t, changed))
			wantError(t, err, "data.parquet", tt.want)
			_, err = parquet.ReadNames(t.Context(), open(t, changed))
			wantError(t, err, "data.parquet", tt.want)
		})
	}
	deepest := withFooter(t, data, groups(128))
	if _, err := parquet.ReadFooter(t.Context(), open(t, deepest), parquet.NameMapping{}); err != nil {
		t.Errorf("128 levels: %v", err)
	}
}

// groups replaces the schema by one column that many levels deep.
func groups(levels int) func(*metadata.FileMetaData) {
	return func(m *metadata.FileMetaData) {
		one, group, leaf := int32(1), *m.FileMetaData.Schema[0], *m.FileMetaData.Schema[1]
		group.NumChildren = &one
		m.FileMetaData.Schema = m.FileMetaData.Schema[:0:0]
		for range levels {
			m.FileMetaData.Schema = append(m.FileMetaData.Schema, &group)
		}
		m.FileMetaData.Schema = append(m.FileMetaData.Schema, &leaf)
		empty(m)
	}
}

// columns replaces the schema by many columns.
func columns(n int32) func(*metadata.FileMetaData) {
	return func(m *metadata.FileMetaData) {
		m.FileMetaData.Schema[0].NumChildren = &n
		m.FileMetaData.Schema = append(m.FileMetaData.Schema[:1:1], slices.Repeat(m.FileMetaData.Schema[1:2], int(n))...)
		empty(m)
	}
}

// longPaths replaces the schema by one column with a long name and 1000 columns in it.
func longPaths(m *metadata.FileMetaData) {
	one, n, group := int32(1), int32(1000), *m.FileMetaData.Schema[0]
	group.NumChildren, group.Name = &n, strings.Repeat("n", 1<<16)
	m.FileMetaData.Schema[0].NumChildren = &one
	m.FileMetaData.Schema = append(append(m.FileMetaData.Schema[:1:1], &group), slices.Repeat(m.FileMetaData.Schema[1:2], int(n))...)
	empty(m)
}

// empty removes the rows and all else that belongs to the old schema.
func empty(m *metadata.FileMetaData) {
	m.NumRows, m.RowGroups, m.ColumnOrders = 0, nil, nil
}

// TestSmallFootersTakeLittleMemory reads footers and an offset index of a few bytes that announce lists and strings of many.
func TestSmallFootersTakeLittleMemory(t *testing.T) {
	list := func(field byte) []byte {
		return append([]byte{field<<4 | 9, 0xfc}, binary.AppendUvarint(nil, 99<<20)...)
	}
	for name, footer := range map[string][]byte{
		"schema":     list(2),
		"row groups": append([]byte{0x29, 0x0c}, list(2)...),
		"name":       append([]byte{0x29, 0x1c, 0x48}, binary.AppendUvarint(nil, 99<<20)...),
	} {
		t.Run(name, func(t *testing.T) {
			f := open(t, endedBy(footer))
			allocatesLess(t, 1<<20, func() {
				_, err := parquet.ReadFooter(t.Context(), f, nil)
				wantError(t, err, "data.parquet", "footer cannot be read")
			})
		})
	}
}

// TestSmallOffsetIndex reads an offset index of a few bytes that announces many pages.
func TestSmallOffsetIndex(t *testing.T) {
	data := write(t, arrowSchema(t, fields()), rows(0, 10))
	meta, index := metadataOf(t, data), append([]byte{0x19, 0xfc}, binary.AppendUvarint(nil, 99<<20)...)
	pages := slices.Concat(data[:len(data)-8-int(binary.LittleEndian.Uint32(data[len(data)-8:]))], index)
	at, length := int64(len(pages)-len(index)), int32(len(index))
	meta.RowGroups[0].Columns[0].OffsetIndexOffset, meta.RowGroups[0].Columns[0].OffsetIndexLength = &at, &length
	o := must(t, closed(t, pages, meta), field(t, "id"))
	allocatesLess(t, 1<<20, func() {
		_, err := o.projection.Locate(t.Context(), o.file, 0, 0, 5)
		wantError(t, err, `column "id": offset index`, "restore or rewrite")
	})
}

// endedBy is a file without pages with the footer.
func endedBy(footer []byte) []byte {
	return slices.Concat([]byte("PAR1"), footer, binary.LittleEndian.AppendUint32(nil, uint32(len(footer))), []byte("PAR1"))
}

// TestFootersOfManyItems reads a footer with row groups of so many column chunks, of three bytes each, that they would take 35 times its length.
func TestFootersOfManyItems(t *testing.T) {
	const groups, chunks = 65, 1 << 16
	list := func(n uint64) []byte { return append([]byte{0x19, 0xfc}, binary.AppendUvarint(nil, n)...) }
	group := slices.Concat(list(chunks), bytes.Repeat([]byte{0x26, 0, 0}, chunks), []byte{0x16, 0, 0x16, 0, 0})
	footer := slices.Concat([]byte{0x29, 0x1c, 0x48, 0, 0, 0x29}, list(groups)[1:], bytes.Repeat(group, groups), []byte{0})
	_, err := parquet.ReadFooter(t.Context(), open(t, endedBy(footer)), nil)
	wantError(t, err, "data.parquet", "more than 4194304 items together")
}

// allocatesLess fails the test if do allocates more than most bytes of the Go heap.
func allocatesLess(t *testing.T, most uint64, do func()) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > most {
		t.Errorf("%d bytes were allocated, want at most %d", n, most)
	}
}

// TestColumnChunksAreComplete reads footers whose row groups lack column chunks.
func TestColumnChunksAreComplete(t *testing.T) {
	data := write(t, arrowSchema(t, fields()), rows(0, 10))
	for name, tt := range map[string]struct {
		change func(*metadata.FileMetaData)
		want   string
	}{
		"fewer":         {func(m *metadata.FileMetaData) { m.RowGroups[0].Columns = m.RowGroups[0].Columns[:3] }, "3 column chunks in row group 0"},
		"none":          {func(m *metadata.FileMetaData) { m.RowGroups[0].Columns = nil }, "0 column chunks"},
		"without sizes": {func(m *metadata.FileMetaData) { m.RowGroups[0].Columns[1].MetaData = nil }, `nothing about column "text"`},
		"rows that wrap": {func(m *metadata.FileMetaData) {
			m.RowGroups = append(m.RowGroups, m.RowGroups[0], m.RowGroups[0])
			m.RowGroups[0].NumRows = math.MaxInt64
		}, "9223372036854775807 rows in row group 1"},
	} {
		t.Run(name, func(t *testing.T) {
			wantError(t, readAll(t, withFooter(t, data, tt.change)), tt.want, "restore or rewrite")
		})
	}
}

// TestNamesAreText reads a file with a column whose name is not UTF-8: it is an error only for a projection that needs it.
func TestNamesAreText(t *testing.T) {
	data := write(t, arrowSchema(t, fields()), rows(0, 10))
	data = withFooter(t, data, func(m *metadata.FileMetaData) { m.FileMetaData.Schema[2].Name = "te\xffxt" })
	_, err := project(t, data, field(t, "text"))
	wantError(t, err, `column "text"`, `"te\xffxt" is not UTF-8`)
	must(t, data, field(t, "id"))
}

// TestDecimalsArePossible reads a decimal with more digits behind the point than digits.
func TestDecimalsArePossible(t *testing.T) {
	price := ice.NestedField{ID: 1, Name: "price", Type: ice.DecimalTypeOf(9, 2)}
	data := write(t, arrowSchema(t, []ice.NestedField{price}), []string{`{"price":"1.25"}`})
	for _, scale := range []int32{10, math.MaxInt32} {
		changed := withFooter(t, data, func(m *metadata.FileMetaData) {
			m.FileMetaData.Schema[1].LogicalType.DECIMAL.Scale, m.FileMetaData.Schema[1].Scale = scale, &scale
		})
		footer, err := parquet.ReadNames(t.Context(), open(t, changed))
		if err != nil {
			t.Fatal(err)
		}
		wantError(t, footer.Columns()[0].Problem, fmt.Sprintf("9 digits, %d of them", scale))
	}
}

// TestFootersAnnounceManyValues reads a footer that states very many values of lists: only those that the pages have take memory.
func TestFootersAnnounceManyValues(t *testing.T) {
	data := write(t, arrowSchema(t, fields()), rows(0, 10))
	for _, n := range []int64{math.MaxInt32, 1 << 36, math.MaxInt64} {
		data := withFooter(t, data, func(m *metadata.FileMetaData) { m.RowGroups[0].Columns[2].MetaData.NumValues = n })
		allocatesLess(t, 64<<20, func() { wantError(t, readAll(t, data), "tokens", fmt.Sprint(n)) })
	}
}
