// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package parquet_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	pq "github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/metadata"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	ice "github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/kubeflow/datacache/cacheserver/column"
	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/source/parquet"
	"github.com/kubeflow/datacache/test/kit/parquettest"
)

// fields are the columns of most files here: primitive values, a dictionary, a list, a nested struct, a map.
func fields() []ice.NestedField {
	deep := &ice.StructType{FieldList: []ice.NestedField{{ID: 9, Name: "y", Type: ice.PrimitiveTypes.Float64}}}
	return []ice.NestedField{
		{ID: 1, Name: "id", Type: ice.PrimitiveTypes.Int64},
		{ID: 2, Name: "text", Type: ice.PrimitiveTypes.String},
		{ID: 3, Name: "tokens", Type: &ice.ListType{ElementID: 4, Element: ice.PrimitiveTypes.Int32}},
		{ID: 5, Name: "place", Type: &ice.StructType{FieldList: []ice.NestedField{
			{ID: 6, Name: "x", Type: ice.PrimitiveTypes.Int64}, {ID: 7, Name: "name", Type: ice.PrimitiveTypes.String}, {ID: 8, Name: "deep", Type: deep},
		}}},
		{ID: 10, Name: "counts", Type: &ice.MapType{KeyID: 11, KeyType: ice.PrimitiveTypes.String, ValueID: 12, ValueType: ice.PrimitiveTypes.Int64}},
	}
}

// field returns the field with the name.
func field(t *testing.T, name string) ice.NestedField {
	t.Helper()
	all := fields()
	at := slices.IndexFunc(all, func(f ice.NestedField) bool { return f.Name == name })
	if at < 0 {
		t.Fatalf("no field %q", name)
	}
	return all[at]
}

// rows returns rows [first, end) of fields as JSON, with nulls and empty lists at every level.
func rows(first, end int) []string {
	out := make([]string, 0, end-first)
	for i := first; i < end; i++ {
		null := func(every int, value string) string {
			if i%every == 3 {
				return "null"
			}
			return value
		}
		tokens := make([]string, i%4)
		for k := range tokens {
			tokens[k] = fmt.Sprint(i * k)
		}
		place := fmt.Sprintf(`{"x":%d,"name":%s,"deep":%s}`, i, null(5, fmt.Sprintf(`"name %d"`, i)), null(6, fmt.Sprintf(`{"y":%d.5}`, i)))
		out = append(out, fmt.Sprintf(`{"id":%s,"text":%s,"tokens":%s,"place":%s,"counts":%s}`,
			null(11, fmt.Sprint(i)), null(7, fmt.Sprintf(`"text %d"`, i%5)), null(13, "["+strings.Join(tokens, ",")+"]"),
			null(17, place), null(8, fmt.Sprintf(`[{"key":"k","value":%d}]`, i))))
	}
	return out
}

// served describes fields as columns of a table.
func served(t *testing.T, fields ...ice.NestedField) []column.Field {
	t.Helper()
	schema := arrowSchema(t, fields)
	out := make([]column.Field, len(fields))
	for i, f := range fields {
		out[i] = servedAs(f, schema.Field(i).Type)
	}
	return out
}

func servedAs(f ice.NestedField, to arrow.DataType) column.Field {
	out := column.Field{ID: f.ID, Name: f.Name, Type: to, TypeName: f.Type.String(), Required: f.Required}
	switch of := f.Type.(type) {
	case *ice.StructType:
		for i, kid := range of.FieldList {
			out.Kids = append(out.Kids, servedAs(kid, to.(*arrow.StructType).Field(i).Type))
		}
	case *ice.ListType:
		out.Kids = []column.Field{servedAs(of.ElementField(), to.(*arrow.ListType).Elem())}
	case *ice.MapType:
		out.Kids = []column.Field{servedAs(of.KeyField(), to.(*arrow.MapType).KeyType()), servedAs(of.ValueField(), to.(*arrow.MapType).ItemType())}
	}
	return out
}

// arrowSchema returns the schema with which a writer that supports Iceberg's field ids writes the fields.
func arrowSchema(t *testing.T, fields []ice.NestedField) *arrow.Schema {
	t.Helper()
	schema, err := table.SchemaToArrowSchema(ice.NewSchema(0, fields...), nil, true, false)
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

// write writes rows in JSON to a Parquet file. Pages have few rows.
func write(t *testing.T, schema *arrow.Schema, rows []string, properties ...pq.WriterProperty) []byte {
	t.Helper()
	rec, _, err := array.RecordFromJSON(memory.DefaultAllocator, schema, strings.NewReader("["+strings.Join(rows, ",")+"]"))
	if err != nil {
		t.Fatal(err)
	}
	defer rec.Release()
	properties = append([]pq.WriterProperty{
		pq.WithDataPageSize(64), pq.WithBatchSize(8), pq.WithDictionaryDefault(false), pq.WithDictionaryFor("text", true),
	}, properties...)
	return parquettest.Write(t, rec, pq.NewWriterProperties(properties...), pqarrow.DefaultWriterProps())
}

// metadataOf parses a file's footer, using only arrow-go.
func metadataOf(t *testing.T, data []byte) *metadata.FileMetaData {
	t.Helper()
	r, err := file.NewParquetReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	return r.MetaData()
}

// closed appends a footer to the pages of a file.
func closed(t *testing.T, pages []byte, meta *metadata.FileMetaData) []byte {
	t.Helper()
	var footer bytes.Buffer
	if _, err := meta.WriteTo(&footer, nil); err != nil {
		t.Fatal(err)
	}
	return slices.Concat(pages, footer.Bytes(), binary.LittleEndian.AppendUint32(nil, uint32(footer.Len())), []byte("PAR1"))
}

// withFooter returns a file with its footer changed.
func withFooter(t *testing.T, data []byte, change func(*metadata.FileMetaData)) []byte {
	t.Helper()
	meta := metadataOf(t, data)
	change(meta)
	return closed(t, data[:len(data)-8-int(binary.LittleEndian.Uint32(data[len(data)-8:]))], meta)
}

// open opens a file with the content.
func open(t *testing.T, data []byte) *objstore.File {
	t.Helper()
	name := t.TempDir() + "/data.parquet"
	if err := os.WriteFile(name, data, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := objstore.New(objstore.Config{}).Open(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// opened is a file, and the objects with which some columns of it are read.
type opened struct {
	file       *objstore.File
	footer     *parquet.Footer
	projection *parquet.Projection
}

// project opens a file and projects it to fields. Columns that the file lacks are null.
func project(t *testing.T, data []byte, fields ...ice.NestedField) (opened, error) {
	t.Helper()
	return projectWith(t, data, func(column.Field) (*column.Value, error) { return nil, nil }, fields...)
}

func projectWith(t *testing.T, data []byte, missing func(column.Field) (*column.Value, error), fields ...ice.NestedField) (o opened, err error) {
	t.Helper()
	o.file = open(t, data)
	if o.footer, err = parquet.ReadFooter(t.Context(), o.file, nil); err == nil {
		o.projection, err = parquet.NewProjection(o.footer, served(t, fields...), missing)
	}
	return o, err
}

// must is project for a file that can be read.
func must(t *testing.T, data []byte, fields ...ice.NestedField) opened {
	t.Helper()
	o, err := project(t, data, fields...)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// read reads rows [first, end) of a row group in batches of at most seven, as a data node does; it fails the test if memory is not
// released.
func (o opened) read(t *testing.T, group int, first, end int64) (rows []string, err error) {
	t.Helper()
	section, err := o.projection.Locate(t.Context(), o.file, group, first, end)
	if err != nil {
		return nil, err
	}
	return o.readSection(t, section)
}

// readSection is read for a section that was located.
func (o opened) readSection(t *testing.T, section parquet.Section) (rows []string, err error) {
	t.Helper()
	mem := memory.NewCheckedAllocator(memory.DefaultAllocator)
	defer mem.AssertSize(t, 0)
	if err := o.projection.Prefetch(t.Context(), o.file, section); err != nil {
		return nil, err
	}
	const most = 7
	r, err := parquet.NewRowReader(t.Context(), o.projection, o.file, section, most, mem)
	if err != nil {
		return nil, err
	}
	err = r.Each(t.Context(), func(columns []arrow.Array) error {
		if n := columns[0].Len(); n == 0 || n > most {
			t.Errorf("a batch of %d rows, want 1 to %d", n, most)
		}
		rows = append(rows, asJSON(t, columns)...)
		return nil
	})
	return rows, err
}

// asJSON returns the rows of columns as JSON objects, whose keys are the columns' numbers.
func asJSON(t *testing.T, columns []arrow.Array) (rows []string) {
	t.Helper()
	fields := make([]arrow.Field, len(columns))
	for i, c := range columns {
		fields[i] = arrow.Field{Name: fmt.Sprint(i), Type: c.DataType(), Nullable: true}
	}
	rec := array.NewRecordBatch(arrow.NewSchema(fields, nil), columns, int64(columns[0].Len()))
	defer rec.Release()
	text, err := rec.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	var objects []json.RawMessage
	if err := json.Unmarshal(text, &objects); err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		rows = append(rows, string(o))
	}
	return rows
}

// numbered replaces the names of top-level columns in rows by their numbers, in the given order, and drops other columns.
func numbered(t *testing.T, rows []string, names ...string) []string {
	t.Helper()
	out := make([]string, 0, len(rows))
	for _, row := range rows {
		var columns map[string]any
		if err := json.Unmarshal([]byte(row), &columns); err != nil {
			t.Fatal(err)
		}
		cells := make([]string, len(names))
		for i, name := range names {
			cell, err := json.Marshal(columns[name]) // fields of structs by name, as in Arrow's JSON
			if err != nil {
				t.Fatal(err)
			}
			cells[i] = fmt.Sprintf(`"%d":%s`, i, cell)
		}
		out = append(out, "{"+strings.Join(cells, ",")+"}")
	}
	return out
}

// wantError checks that the text of an error contains all parts.
func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one with %q", parts)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q lacks %q", err, part)
		}
	}
}
