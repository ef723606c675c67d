// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"bytes"
	"encoding/binary"
	"regexp"
	"slices"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/metadata"
	ice "github.com/apache/iceberg-go"

	"github.com/kubeflow/datacache/test/kit/icetest"
)

// withFooter returns a Parquet file with its footer changed.
func withFooter(t *testing.T, data []byte, change func(*metadata.FileMetaData)) []byte {
	t.Helper()
	r, err := file.NewParquetReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	change(r.MetaData())
	var footer bytes.Buffer
	if _, err := r.MetaData().WriteTo(&footer, nil); err != nil {
		t.Fatal(err)
	}
	size := footer.Len()
	_ = binary.Write(&footer, binary.LittleEndian, uint32(size)) // to memory
	pages := len(data) - 8 - int(binary.LittleEndian.Uint32(data[len(data)-8:]))
	return slices.Concat(data[:pages], footer.Bytes(), []byte("PAR1"))
}

// TestUnreadableFooters reads files whose footers make a plan fail: the error names the file and, if it concerns one, the column.
func TestUnreadableFooters(t *testing.T) {
	const rows = 3
	tests := map[string]struct {
		change func(*metadata.FileMetaData)
		want   []string
	}{
		"codec": {func(m *metadata.FileMetaData) { m.RowGroups[0].Columns[0].MetaData.Codec = 3 },
			[]string{`column "id"`, "LZO", "ZSTD", "rewrite"}},
		"bytes overflowed": {func(m *metadata.FileMetaData) { m.RowGroups[0].Columns[1].MetaData.TotalUncompressedSize = -2147483328 },
			[]string{`column "data"`, "-2147483328", "overflowed"}},
		"values overflowed": {func(m *metadata.FileMetaData) { m.RowGroups[0].Columns[1].MetaData.NumValues = -1 },
			[]string{`column "data"`, "overflowed"}},
		"values of other rows": {func(m *metadata.FileMetaData) { m.RowGroups[0].Columns[0].MetaData.NumValues = 2 },
			[]string{`column "id"`, "2 values in 3 rows"}},
		"rows of the file":      {func(m *metadata.FileMetaData) { m.NumRows = 0 }, []string{"footer says 0 rows", "have 3"}},
		"rows of the row group": {func(m *metadata.FileMetaData) { m.RowGroups[0].NumRows = 0 }, []string{"footer says 3 rows", "have 0"}},
		"no row groups":         {func(m *metadata.FileMetaData) { m.RowGroups = m.RowGroups[:0] }, []string{"footer says 3 rows", "have 0"}},
		"too few columns":       {func(m *metadata.FileMetaData) { m.RowGroups[0].Columns = m.RowGroups[0].Columns[:1] }, []string{"foreign-3.parquet"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			made := icetest.Local(t).Create("t", 2, idAndData())
			metadata := addFile(t, made, withFooter(t, idAndDataFile(t), tt.change), rows, nil)
			_, err := openTable(t, metadata, Selection{}).Plan(t.Context(), nil)
			wantError(t, err, append(tt.want, "foreign-3.parquet")...)
		})
	}
}

// TestRowsOfTheManifest reads tables whose manifests state other row counts than the footers.
func TestRowsOfTheManifest(t *testing.T) {
	for name, filter := range map[string]string{"all rows": "", "with a filter": "id > 0"} {
		for _, said := range []int{0, 2, 4} {
			t.Run(name, func(t *testing.T) {
				made := icetest.Local(t).Create("t", 2, idAndData())
				metadata := addFile(t, made, idAndDataFile(t), said, nil)
				_, err := openTable(t, metadata, Selection{Filter: filter}).Plan(t.Context(), nil)
				wantError(t, err, "foreign", "footer has 3 rows", "manifest")
			})
		}
	}
}

func TestManifestListedTwice(t *testing.T) {
	made := icetest.Local(t).Plain("t", 2, 2, 10, 10)
	snapshot := made.Iceberg().CurrentSnapshot()
	manifests, err := snapshot.Manifests(fileIO{ctx: t.Context(), store: newStore()})
	if err != nil {
		t.Fatal(err)
	}
	var list bytes.Buffer
	if err := ice.WriteManifestList(2, &list, snapshot.SnapshotID, snapshot.ParentSnapshotID, &snapshot.SequenceNumber, 0, append(manifests, manifests[0])); err != nil {
		t.Fatal(err)
	}
	writeFile(t, snapshot.ManifestList, list.Bytes())
	_, err = openTable(t, made.Metadata(), Selection{}).Plan(t.Context(), nil)
	wantError(t, err, "twice", manifests[0].FilePath(), snapshot.ManifestList)
}

func idAndData() *ice.Schema {
	return ice.NewSchema(0,
		ice.NestedField{ID: 1, Name: "id", Type: ice.PrimitiveTypes.Int64},
		ice.NestedField{ID: 2, Name: "data", Type: ice.PrimitiveTypes.String},
	)
}

// idAndDataFile returns a Parquet file of three rows.
func idAndDataFile(t *testing.T) []byte {
	t.Helper()
	return parquetFile(t, arrow.NewSchema([]arrow.Field{
		{Name: "id", Type: arrow.PrimitiveTypes.Int64, Nullable: true},
		{Name: "data", Type: arrow.BinaryTypes.String, Nullable: true},
	}, nil), `[{"id":1,"data":"a"},{"id":2,"data":null},{"id":3,"data":"c"}]`)
}

// TestUnknownLogicalType reads a file with a logical type that the Parquet format did not define at the time of writing.
func TestUnknownLogicalType(t *testing.T) {
	schema := arrow.NewSchema([]arrow.Field{idSchema.Field(0), {Name: "strange", Type: arrow.BinaryTypes.String, Nullable: true}}, nil)
	data := parquetFile(t, schema, `[{"id":1,"strange":"x"}]`)
	// LogicalType is a union: change field 1, STRING, to field 9, which is reserved.
	known := regexp.MustCompile(`[\x1c\x4c]\x1c\x00\x00`).FindAllIndex(data, -1)
	if len(known) != 1 {
		t.Fatalf("the file has %d string types", len(known))
	}
	data[known[0][0]+1] = 0x9c
	made := icetest.Local(t).Create("t", 2, ice.NewSchema(0,
		ice.NestedField{ID: 1, Name: "id", Type: ice.PrimitiveTypes.Int64}, ice.NestedField{ID: 2, Name: "strange", Type: ice.PrimitiveTypes.String}))
	metadata := addFile(t, made, data, 1, nil)
	_, err := openTable(t, metadata, Selection{}).Plan(t.Context(), nil)
	wantError(t, err, "foreign-1.parquet", `column "strange" of type string`, "logical type of BYTE_ARRAY", "not known", "can be read are id")
	check(t, openTable(t, metadata, Selection{Columns: []string{"id"}}), []string{`{"id":1}`})
}
