// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/apache/arrow-go/v18/parquet/schema"
	ice "github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/kubeflow/datacache/test/kit/icetest"
	"github.com/kubeflow/datacache/test/kit/parquettest"
)

// parquetFile returns a file as written by a program that does not know Iceberg.
func parquetFile(t *testing.T, schema *arrow.Schema, rows string, options ...pqarrow.WriterOption) []byte {
	t.Helper()
	rec, _, err := array.RecordFromJSON(memory.DefaultAllocator, schema, bytes.NewReader([]byte(rows)))
	if err != nil {
		t.Fatal(err)
	}
	defer rec.Release()
	return parquetOf(t, rec, options...)
}

func parquetOf(t *testing.T, rec arrow.RecordBatch, options ...pqarrow.WriterOption) []byte {
	t.Helper()
	return parquettest.Write(t, rec, parquet.NewWriterProperties(), pqarrow.NewArrowWriterProperties(options...))
}

// addFile adds a file to a table, without iceberg-go's checks in AddFiles, which reject files that other engines allow.
func addFile(t *testing.T, made *icetest.Table, data []byte, rows int, partition map[int]any) string {
	t.Helper()
	name := fmt.Sprintf("%s/foreign-%d.parquet", t.TempDir(), rows)
	writeFile(t, name, data)
	return addFileAt(t, made, name, int64(len(data)), rows, partition)
}

// addFileAt adds a file that already exists under its name.
func addFileAt(t *testing.T, made *icetest.Table, name string, size int64, rows int, partition map[int]any) string {
	t.Helper()
	b, err := ice.NewDataFileBuilder(made.Iceberg().Spec(), ice.EntryContentData, name, ice.ParquetFile, partition, nil, nil, int64(rows), size)
	if err != nil {
		t.Fatal(err)
	}
	if made.Iceberg().Metadata().Version() == 3 {
		b.FirstRowID(0)
	}
	tx := made.Iceberg().NewTransaction()
	if err := tx.AddDataFiles(t.Context(), []ice.DataFile{b.Build()}, nil); err != nil {
		t.Fatal(err)
	}
	after, err := tx.Commit(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return after.MetadataLocation()
}

func timesSchema() *ice.Schema {
	return ice.NewSchema(0,
		ice.NestedField{ID: 1, Name: "id", Type: ice.PrimitiveTypes.Int64},
		ice.NestedField{ID: 2, Name: "ts", Type: ice.PrimitiveTypes.Timestamp},
		ice.NestedField{ID: 3, Name: "tz", Type: ice.PrimitiveTypes.TimestampTz},
	)
}

func TestForeignTimestamps(t *testing.T) {
	tests := map[string]struct {
		ts, tz  arrow.DataType
		options []pqarrow.WriterOption
	}{
		"INT96":       {&arrow.TimestampType{Unit: arrow.Nanosecond}, &arrow.TimestampType{Unit: arrow.Nanosecond}, []pqarrow.WriterOption{pqarrow.WithDeprecatedInt96Timestamps(true)}},
		"nanosecond":  {&arrow.TimestampType{Unit: arrow.Nanosecond}, &arrow.TimestampType{Unit: arrow.Nanosecond, TimeZone: "UTC"}, nil},
		"microsecond": {&arrow.TimestampType{Unit: arrow.Microsecond}, &arrow.TimestampType{Unit: arrow.Microsecond, TimeZone: "Europe/Zurich"}, nil},
		"millisecond": {&arrow.TimestampType{Unit: arrow.Millisecond}, &arrow.TimestampType{Unit: arrow.Millisecond, TimeZone: "UTC"}, nil},
	}
	const times = `[{"id":1,"ts":"2024-02-29T12:34:56.789","tz":"2024-02-29T12:34:56.789%s"},{"id":2,"ts":"1960-01-01T00:00:00.001","tz":null}]`
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			schema := arrow.NewSchema([]arrow.Field{
				{Name: "id", Type: arrow.PrimitiveTypes.Int64, Nullable: true},
				{Name: "ts", Type: tt.ts, Nullable: true}, {Name: "tz", Type: tt.tz, Nullable: true},
			}, nil)
			made := icetest.Local(t).Create("t", 2, timesSchema())
			zone := "Z"
			if name == "INT96" {
				zone = "" // the type has no zone
			}
			metadata := addFile(t, made, parquetFile(t, schema, fmt.Sprintf(times, zone), tt.options...), 2, nil)
			check(t, openTable(t, metadata, Selection{}), []string{
				`{"id":1,"ts":"2024-02-29T12:34:56.789","tz":"2024-02-29T12:34:56.789Z"}`,
				`{"id":2,"ts":"1960-01-01T00:00:00.001","tz":null}`,
			})
		})
	}
}

// int96File returns a Parquet file with a column ts of INT96 values: nanoseconds of a day and its Julian day.
func int96File(t *testing.T, values ...[2]int64) []byte {
	t.Helper()
	node, err := schema.NewGroupNode("schema", parquet.Repetitions.Required, schema.FieldList{
		schema.MustPrimitive(schema.NewPrimitiveNode("ts", parquet.Repetitions.Optional, parquet.Types.Int96, 2, -1)),
	}, -1)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	w := file.NewParquetWriter(&out, node)
	group, err := w.AppendRowGroupChecked()
	if err != nil {
		t.Fatal(err)
	}
	chunk, err := group.NextColumn()
	if err != nil {
		t.Fatal(err)
	}
	days, levels := make([]parquet.Int96, len(values)), make([]int16, len(values))
	for i, v := range values {
		binary.LittleEndian.PutUint64(days[i][:], uint64(v[0]))
		binary.LittleEndian.PutUint32(days[i][8:], uint32(v[1]))
		levels[i] = 1
	}
	levels = append(levels, 0) // a null
	if _, err := chunk.(*file.Int96ColumnChunkWriter).WriteBatch(days, levels, nil); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestINT96 reads dates that microseconds can represent and nanoseconds can't.
func TestINT96(t *testing.T) {
	const lastMicrosecond = 86_400_000_000_000 - 1000
	made := icetest.Local(t).Create("t", 2, timesSchema())
	data := int96File(t, [2]int64{0, 1721426}, [2]int64{lastMicrosecond, 5373484}, [2]int64{1000, 2440587})
	check(t, openTable(t, addFile(t, made, data, 4, nil), Selection{Columns: []string{"ts"}}), []string{
		`{"ts":"0001-01-01T00:00:00"}`, `{"ts":"1969-12-31T00:00:00.000001"}`, `{"ts":"9999-12-31T23:59:59.999999"}`, `{"ts":null}`,
	})
}

func TestINT96ThatDoesNotFit(t *testing.T) {
	made := icetest.Local(t)
	for name, tt := range map[string]struct {
		to    ice.Type
		value [2]int64
		want  string
	}{
		"nanoseconds":  {ice.PrimitiveTypes.TimestampNs, [2]int64{0, 5373484}, "9999-12-31"},
		"microseconds": {ice.PrimitiveTypes.Timestamp, [2]int64{0, math.MaxUint32}, "Julian day 4294967295"},
		"too exact":    {ice.PrimitiveTypes.Timestamp, [2]int64{1999, 2440588}, "00:00:00.000001999"},
		"no day":       {ice.PrimitiveTypes.Timestamp, [2]int64{86_400_000_000_000, 2440588}, "Julian day 2440588"},
	} {
		t.Run(name, func(t *testing.T) {
			table := made.Create(name, 3, ice.NewSchema(0,
				ice.NestedField{ID: 1, Name: "id", Type: ice.PrimitiveTypes.Int64}, ice.NestedField{ID: 2, Name: "ts", Type: tt.to}))
			tbl := openTable(t, addFile(t, table, int96File(t, tt.value), 2, nil), Selection{})
			_, err := readSplit(t, tbl, planOf(t, tbl)[0])
			wantError(t, err, "foreign-2.parquet", `column "ts"`, "INT96", tt.want, "does not fit")
		})
	}
}

func TestUnitsOfTimes(t *testing.T) {
	lake := icetest.Local(t)
	schema := arrow.NewSchema([]arrow.Field{
		{Name: "ts", Type: &arrow.TimestampType{Unit: arrow.Nanosecond}, Nullable: true}, {Name: "at", Type: arrow.FixedWidthTypes.Time64ns, Nullable: true},
	}, nil)
	add := func(name, rows string) *Table {
		made := lake.Create(name, 2, ice.NewSchema(0,
			ice.NestedField{ID: 1, Name: "ts", Type: ice.PrimitiveTypes.Timestamp}, ice.NestedField{ID: 2, Name: "at", Type: ice.PrimitiveTypes.Time}))
		return openTable(t, addFile(t, made, parquetFile(t, schema, rows), 1, nil), Selection{})
	}
	check(t, add("whole", `[{"ts":"1969-12-31T23:59:59.999999000","at":"23:59:59.999999000"}]`), []string{`{"at":"23:59:59.999999","ts":"1969-12-31T23:59:59.999999"}`})
	for column, value := range map[string]string{"ts": "1969-12-31T23:59:59.999999999", "at": "23:59:59.999999999"} {
		tbl := add(column, fmt.Sprintf(`[{"%s":"%s"}]`, column, value))
		_, err := readSplit(t, tbl, planOf(t, tbl)[0])
		wantError(t, err, "foreign-1.parquet row group 0", fmt.Sprintf("column %q", column), value, "does not fit", "[us] exactly")
	}
}

func TestForeignTypes(t *testing.T) {
	iceSchema := ice.NewSchema(0,
		ice.NestedField{ID: 1, Name: "small", Type: ice.PrimitiveTypes.Int32},
		ice.NestedField{ID: 2, Name: "wide", Type: ice.PrimitiveTypes.Int64},
		ice.NestedField{ID: 3, Name: "real", Type: ice.PrimitiveTypes.Float64},
		ice.NestedField{ID: 4, Name: "text", Type: ice.PrimitiveTypes.String},
		ice.NestedField{ID: 5, Name: "raw", Type: ice.PrimitiveTypes.Binary},
		ice.NestedField{ID: 6, Name: "list", Type: &ice.ListType{ElementID: 7, Element: ice.PrimitiveTypes.Int64}},
		ice.NestedField{ID: 8, Name: "lacking", Type: ice.PrimitiveTypes.Date},
		ice.NestedField{ID: 9, Name: "at", Type: ice.PrimitiveTypes.Time},
	)
	schema := arrow.NewSchema([]arrow.Field{
		{Name: "unknown", Type: arrow.PrimitiveTypes.Int64, Nullable: true},
		{Name: "small", Type: arrow.PrimitiveTypes.Int8, Nullable: true},
		{Name: "wide", Type: arrow.PrimitiveTypes.Uint32, Nullable: true},
		{Name: "real", Type: arrow.PrimitiveTypes.Float32, Nullable: true},
		{Name: "text", Type: arrow.BinaryTypes.LargeBinary, Nullable: true},
		{Name: "raw", Type: arrow.BinaryTypes.LargeString, Nullable: true},
		{Name: "list", Type: arrow.LargeListOf(arrow.PrimitiveTypes.Int32), Nullable: true},
		{Name: "at", Type: arrow.FixedWidthTypes.Time32ms, Nullable: true},
	}, nil)
	const rows = `[{"unknown":1,"small":-5,"wide":4000000000,"real":0.5,"text":"dGV4dA==","raw":"raw","list":[1,null,3],"at":"01:02:03.004"},{}]`
	made := icetest.Local(t).Create("t", 2, iceSchema)
	metadata := addFile(t, made, parquetFile(t, schema, rows, pqarrow.WithStoreSchema()), 2, nil)
	check(t, openTable(t, metadata, Selection{}), []string{
		`{"at":"01:02:03.004","lacking":null,"list":[1,null,3],"raw":"cmF3","real":0.5,"small":-5,"text":"text","wide":4000000000}`,
		`{"at":null,"lacking":null,"list":null,"raw":null,"real":null,"small":null,"text":null,"wide":null}`,
	})
}

func TestForeignTypesThatDoNotFit(t *testing.T) {
	for name, tt := range map[string]struct {
		from arrow.DataType
		to   ice.Type
	}{
		"narrower":       {arrow.PrimitiveTypes.Int64, ice.PrimitiveTypes.Int32},
		"text as number": {arrow.BinaryTypes.String, ice.PrimitiveTypes.Int64},
		"other scale":    {&arrow.Decimal128Type{Precision: 9, Scale: 3}, ice.DecimalTypeOf(9, 2)},
		"no zone":        {arrow.FixedWidthTypes.Timestamp_us, ice.PrimitiveTypes.Timestamp},
		"list as text":   {arrow.ListOf(arrow.PrimitiveTypes.Int32), ice.PrimitiveTypes.String},
		"text as list":   {arrow.BinaryTypes.String, &ice.ListType{ElementID: 7, Element: ice.PrimitiveTypes.Int64}},
		"fixed length":   {&arrow.FixedSizeBinaryType{ByteWidth: 4}, ice.FixedTypeOf(5)},
	} {
		t.Run(name, func(t *testing.T) {
			schema := arrow.NewSchema([]arrow.Field{{Name: "c", Type: tt.from, Nullable: true}}, nil)
			made := icetest.Local(t).Create("t", 2, ice.NewSchema(0, ice.NestedField{ID: 1, Name: "c", Type: tt.to}))
			metadata := addFile(t, made, parquetFile(t, schema, `[{}]`), 1, nil)
			_, err := openTable(t, metadata, Selection{}).Plan(t.Context(), nil)
			wantError(t, err, "foreign-1.parquet", `column "c"`, "the table")
		})
	}
}

// TestPartitionColumnsNotInTheFile reads a table as a migration from Hive makes it.
func TestPartitionColumnsNotInTheFile(t *testing.T) {
	iceSchema := ice.NewSchema(0,
		ice.NestedField{ID: 1, Name: "id", Type: ice.PrimitiveTypes.Int64},
		ice.NestedField{ID: 2, Name: "region", Type: ice.PrimitiveTypes.String},
		ice.NestedField{ID: 3, Name: "day", Type: ice.PrimitiveTypes.Date},
		ice.NestedField{ID: 4, Name: "code", Type: ice.PrimitiveTypes.Int32},
	)
	schema := arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64, Nullable: true}}, nil)
	made := icetest.Local(t).Create("t", 2, iceSchema, icetest.Partitioned(
		icetest.Identity(2, 1000, "region"), icetest.Identity(3, 1001, "day"), icetest.Identity(4, 1002, "code")))
	values := map[int]any{1000: "eu", 1001: ice.Date(19782), 1002: int32(7)}
	metadata := addFile(t, made, parquetFile(t, schema, `[{"id":1},{"id":2}]`), 2, values)
	want := []string{
		`{"code":7,"day":"2024-02-29","id":1,"region":"eu"}`,
		`{"code":7,"day":"2024-02-29","id":2,"region":"eu"}`,
	}
	check(t, openTable(t, metadata, Selection{}), want)
	check(t, openTable(t, metadata, Selection{Filter: "region = 'eu' AND id = 2"}), want[1:])
	check(t, openTable(t, metadata, Selection{Filter: "region = 'us'"}), nil)
	check(t, openTable(t, metadata, Selection{Columns: []string{"code"}}), []string{`{"code":7}`, `{"code":7}`})
}

func TestNoFieldIDsAndNoNameMapping(t *testing.T) {
	schema := arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64, Nullable: true}}, nil)
	made := icetest.Local(t).Create("t", 2, timesSchema())
	name := t.TempDir() + "/f.parquet"
	data := parquetFile(t, schema, `[{"id":1}]`)
	writeFile(t, name, data)
	b, err := ice.NewDataFileBuilder(*ice.UnpartitionedSpec, ice.EntryContentData, name, ice.ParquetFile, nil, nil, nil, 1, int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	tx := made.Iceberg().NewTransaction()
	if err := tx.AddDataFiles(t.Context(), []ice.DataFile{b.Build()}, nil, table.WithoutAutoNameMapping()); err != nil {
		t.Fatal(err)
	}
	after, err := tx.Commit(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = openTable(t, after.MetadataLocation(), Selection{}).Plan(t.Context(), nil)
	wantError(t, err, name, "schema.name-mapping.default")
}

func TestInitialDefaults(t *testing.T) {
	made := icetest.Local(t).Plain("t", 3, 1, 3, 100)
	made.Evolve(func(u *table.UpdateSchema) {
		u.AddColumn([]string{"grade"}, ice.PrimitiveTypes.String, "", true, ice.NewLiteral("good"))
		u.AddColumn([]string{"level"}, ice.PrimitiveTypes.Int32, "", false, ice.NewLiteral(int32(4)))
	}, func(r icetest.Row) { r["grade"], r["level"] = "good", 4 })
	made.Append(icetest.Row{"id": 9, "grade": "bad"})
	check(t, openTable(t, made.Metadata(), Selection{}), made.Rows())
	check(t, openTable(t, made.Metadata(), Selection{Filter: "level = 4 AND grade = 'good'"}), made.Where(func(r icetest.Row) bool { return r["level"] == 4 }))
	check(t, openTable(t, made.Metadata(), Selection{Filter: "grade = 'bad'"}), made.Where(func(r icetest.Row) bool { return r["grade"] == "bad" }))
}

func TestNaN(t *testing.T) {
	schema := arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64}, {Name: "d", Type: arrow.PrimitiveTypes.Float64, Nullable: true}}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer b.Release()
	b.Field(0).(*array.Int64Builder).AppendValues([]int64{1, 2, 3, 4}, nil)
	b.Field(1).(*array.Float64Builder).AppendValues([]float64{1, math.NaN(), -1, 0}, []bool{true, true, true, false})
	rec := b.NewRecordBatch()
	defer rec.Release()
	made := icetest.Local(t).Create("t", 2, ice.NewSchema(0,
		ice.NestedField{ID: 1, Name: "id", Type: ice.PrimitiveTypes.Int64},
		ice.NestedField{ID: 2, Name: "d", Type: ice.PrimitiveTypes.Float64},
	))
	metadata := addFile(t, made, parquetOf(t, rec), 4, nil)
	for filter, want := range map[string][]string{
		"d > 0":       {`{"id":1}`},
		"d <> 1":      {`{"id":2}`, `{"id":3}`},
		"d IN (1, 5)": {`{"id":1}`},
		"NOT d < 5":   {`{"id":2}`},
		"d IS NULL":   {`{"id":4}`},
	} {
		t.Run(filter, func(t *testing.T) {
			check(t, openTable(t, metadata, Selection{Filter: filter, Columns: []string{"id"}}), want)
		})
	}
}

func TestTypesOfV3(t *testing.T) {
	made := icetest.Local(t).Create("t", 3, ice.NewSchema(0,
		ice.NestedField{ID: 1, Name: "id", Type: ice.PrimitiveTypes.Int64},
		ice.NestedField{ID: 2, Name: "ns", Type: ice.PrimitiveTypes.TimestampNs},
		ice.NestedField{ID: 3, Name: "nstz", Type: ice.PrimitiveTypes.TimestampTzNs},
		ice.NestedField{ID: 4, Name: "nothing", Type: ice.PrimitiveTypes.Unknown},
	))
	made.Append(icetest.Row{"id": 1, "ns": "2024-01-02T03:04:05.123456789", "nstz": "1960-01-02T03:04:05.123456789Z"}, icetest.Row{"id": 2})
	check(t, openTable(t, made.Metadata(), Selection{}), made.Rows())
}

// TestLargePages reads pages of more than the 64 MiB that arrow-go allows by default, as pyarrow writes them for images: it ends a
// page after 1024 values at the earliest.
func TestLargePages(t *testing.T) {
	const rows, size = 1100, 62 << 10
	b := array.NewBinaryBuilder(memory.DefaultAllocator, arrow.BinaryTypes.Binary)
	defer b.Release()
	value := make([]byte, size)
	for i := range rows {
		value[0], value[1] = byte(i), byte(i>>8)
		b.Append(value)
	}
	column := b.NewArray()
	defer column.Release()
	schema := arrow.NewSchema([]arrow.Field{{Name: "image", Type: arrow.BinaryTypes.Binary}}, nil)
	rec := array.NewRecordBatch(schema, []arrow.Array{column}, rows)
	defer rec.Release()
	var out bytes.Buffer
	props := parquet.NewWriterProperties(parquet.WithDataPageSize(1<<30), parquet.WithDictionaryDefault(false), parquet.WithBatchSize(rows), parquet.WithCompression(compress.Codecs.Uncompressed), parquet.WithStats(false))
	w, err := pqarrow.NewFileWriter(schema, &out, props, pqarrow.DefaultWriterProps())
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Write(rec), w.Close()); err != nil {
		t.Fatal(err)
	}
	made := icetest.Local(t).Create("t", 2, ice.NewSchema(0, ice.NestedField{ID: 1, Name: "image", Type: ice.PrimitiveTypes.Binary}))
	tbl := openTable(t, addFile(t, made, out.Bytes(), rows, nil), Selection{})
	f, err := tbl.Fetch(t.Context(), planOf(t, tbl)[0], 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n := 0
	for rec, err := range keptOf(t.Context(), f) {
		if err != nil {
			t.Fatal(err)
		}
		images := rec.Column(0).(*array.Binary)
		for i := range images.Len() {
			if v := images.Value(i); len(v) != size || v[0] != byte(n) || v[1] != byte(n>>8) {
				t.Fatalf("image %d is wrong", n)
			}
			n++
		}
		rec.Release()
	}
	if n != rows {
		t.Errorf("%d images, want %d", n, rows)
	}
}
