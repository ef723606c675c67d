// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/extensions"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/catalog"
	"github.com/apache/iceberg-go/catalog/hadoop"
	"github.com/apache/iceberg-go/table"
	"github.com/google/uuid"
)

// newRand returns a generator with a random seed, which is logged so that a failure can be reproduced.
func newRand(t *testing.T) *rand.Rand {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

func optional(id int, name string, typ iceberg.Type) iceberg.NestedField {
	return iceberg.NestedField{ID: id, Name: name, Type: typ}
}

// allTypes is a schema with a column of each type that filters support, at the top level and in structs, and some that they don't.
func allTypes() *iceberg.Schema {
	p := iceberg.PrimitiveTypes
	inner := &iceberg.StructType{FieldList: []iceberg.NestedField{optional(30, "z", p.String), optional(31, "f", p.Float64)}}
	group := &iceberg.StructType{FieldList: []iceberg.NestedField{optional(32, "x", p.Int32), optional(33, "y", p.Int64), optional(34, "inner", inner)}}
	return iceberg.NewSchema(0,
		iceberg.NestedField{ID: 1, Name: "id", Type: p.Int64, Required: true},
		optional(2, "i", p.Int32), optional(3, "l", p.Int64), optional(4, "b", p.Bool), optional(5, "f", p.Float32),
		optional(6, "d", p.Float64), optional(7, "s", p.String), optional(8, "dec", iceberg.DecimalTypeOf(10, 2)),
		optional(9, "wide", iceberg.DecimalTypeOf(38, 5)), optional(10, "date", p.Date), optional(11, "time", p.Time),
		optional(12, "ts", p.Timestamp), optional(13, "tz", p.TimestampTz), optional(14, "tsns", p.TimestampNs),
		optional(15, "tzns", p.TimestampTzNs), optional(16, "bin", p.Binary), optional(17, "fix", iceberg.FixedTypeOf(2)),
		optional(18, "u", p.UUID), optional(19, "group", group), optional(20, "odd name", p.Int32),
		optional(21, "tags", &iceberg.ListType{ElementID: 35, Element: p.Int32}),
		optional(22, "map", &iceberg.MapType{KeyID: 36, KeyType: p.String, ValueID: 37, ValueType: p.Int32}),
	)
}

// flat is allTypes without lists, maps and structs, which make iceberg-go's row filter look at the wrong columns.
func flat() *iceberg.Schema {
	fields := slices.DeleteFunc(slices.Clone(allTypes().Fields()), func(f iceberg.NestedField) bool {
		_, nested := f.Type.(iceberg.NestedType)
		return nested
	})
	return iceberg.NewSchema(0, fields...)
}

// source draws a column's values from a small set, so that literals match some of them. A value is nil or a bool, int64, float64 or
// string whose order is that of the column's type; text formats it as a literal.
type source struct {
	name   string // name as in a clause
	path   string // full name, with dots
	values []any
	text   func(v any) string
	class  string // "", "bool", "float" or "string"
}

func ints(values ...int64) []any {
	out := make([]any, len(values))
	for i, v := range values {
		out[i] = v
	}
	return out
}

func plain(v any) string { return fmt.Sprint(v) }

func quotedText(v any) string { return "'" + strings.ReplaceAll(v.(string), "'", "''") + "'" }

func layoutText(word, layout string, unit int64) func(any) string {
	return func(v any) string {
		n := v.(int64) * unit
		return word + "'" + arrow.Timestamp(n).ToTime(arrow.Nanosecond).Format(layout) + "'"
	}
}

func scaledText(scale int32) func(any) string {
	return func(v any) string { return decimal128.FromI64(v.(int64)).ToString(scale) }
}

// sources describes the columns of allTypes that filters support.
func sources() []source {
	floats := []any{-2.5, math.Copysign(0, -1), 0.0, 1.5, 2.0, 0x1p100, math.Inf(1), math.Inf(-1), math.NaN()}
	words := []any{"", "a", "ab", "abc", "abd", "b%_!", "it's", "é", "éa", "\U0010FFFF", "\U0010FFFFx", "z"}
	const day, second = int64(86400e9), int64(1e9)
	return []source{
		{"i", "i", ints(-7, 0, 1, 2, math.MaxInt32, math.MinInt32), plain, ""},
		{"l", "l", ints(-7, 0, 1, 2, math.MaxInt64, math.MinInt64), plain, ""},
		{"b", "b", []any{true, false}, plain, "bool"},
		{"f", "f", floats, plain, "float"},
		{"d", "d", floats, plain, "float"},
		{"s", "s", words[1:], quotedText, "string"}, // partitioned by s without "": iceberg-go v0.7.0 writes it as a missing bound
		{"dec", "dec", ints(-250, 0, 1, 12345, 9999999999), scaledText(2), ""},
		{"wide", "wide", ints(-250000, 0, 1, math.MaxInt64), scaledText(5), ""},
		{"date", "date", ints(-400, 0, 1, 20000), layoutText("DATE ", "2006-01-02", day), ""},
		{"time", "time", ints(0, 1, 86399999999), layoutText("", "15:04:05.000000", 1000), ""},
		{"ts", "ts", ints(-1, 0, 1, 1700000000000000), layoutText("", "2006-01-02T15:04:05.000000", 1000), ""},
		{"tz", "tz", ints(-1, 0, 1, 1700000000000000), layoutText("TIMESTAMP ", "2006-01-02 15:04:05.000000Z", 1000), ""},
		{"tsns", "tsns", ints(-1, 0, 1, 5*second), layoutText("timestamp ", "2006-01-02 15:04:05.000000000", 1), ""},
		{"tzns", "tzns", ints(-1, 0, 1, 5*second), layoutText("", "2006-01-02 15:04:05.000000000+00:00", 1), ""},
		{"bin", "bin", []any{"", "\x00", "a", "\xff\x00"}, func(v any) string { return fmt.Sprintf("x'%x'", v) }, ""},
		{"fix", "fix", []any{"\x00\x00", "\x00\x01", "\xff\x00"}, func(v any) string { return fmt.Sprintf("X'%X'", v) }, ""},
		{"u", "u", []any{string(make([]byte, 16)), "0123456789abcdef", "\xff123456789abcdef"}, func(v any) string {
			return "'" + uuid.UUID([]byte(v.(string))).String() + "'"
		}, ""},
		{"group.x", "group.x", ints(-7, 0, 1, 2), plain, ""},
		{"`group`.y", "group.y", ints(-7, 0, 1, 2), plain, ""},
		{`group."inner".z`, "group.inner.z", words, quotedText, "string"},
		{"group.inner.f", "group.inner.f", floats, plain, "float"},
		{`"odd name"`, "odd name", ints(0, 1, 2), plain, ""},
	}
}

// row maps full names to values; fields of a NULL struct are absent.
type row map[string]any

// randomRows draws rows with increasing ids from a random quarter of each column's values, so that batches differ and files can be
// pruned.
func randomRows(rng *rand.Rand, columns []source, first, count int) []row {
	pools := map[string][]any{}
	for _, c := range columns {
		at := rng.IntN(len(c.values))
		for range 1 + len(c.values)/4 {
			pools[c.path] = append(pools[c.path], c.values[at%len(c.values)])
			at++
		}
	}
	rows := make([]row, count)
	for i := range rows {
		rows[i] = row{"id": int64(first + i)}
		nullGroup, nullInner := rng.IntN(8) == 0, rng.IntN(8) == 0
		for _, c := range columns {
			inner := len(c.path) > 11 && c.path[:11] == "group.inner"
			group := len(c.path) > 6 && c.path[:6] == "group."
			if rng.IntN(5) > 0 && (!group || !nullGroup) && (!inner || !nullInner) {
				rows[i][c.path] = pools[c.path][rng.IntN(len(pools[c.path]))]
			}
		}
		rows[i]["group"], rows[i]["group.inner"] = !nullGroup, !nullInner
	}
	return rows
}

// batchOf builds an Arrow record batch from rows.
func batchOf(t *testing.T, schema *arrow.Schema, rows []row) arrow.RecordBatch {
	t.Helper()
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer b.Release()
	for _, r := range rows {
		for i, f := range schema.Fields() {
			appendValue(t, b.Field(i), f.Name, r)
		}
	}
	return b.NewRecordBatch()
}

func appendValue(t *testing.T, b array.Builder, path string, r row) {
	t.Helper()
	if group, ok := b.(*array.StructBuilder); ok && r[path] == true {
		group.Append(true)
		for i, f := range group.Type().(*arrow.StructType).Fields() {
			appendValue(t, group.FieldBuilder(i), path+"."+f.Name, r)
		}
		return
	}
	v, ok := r[path]
	if !ok || v == false && b.Type().ID() == arrow.STRUCT {
		b.AppendNull()
		return
	}
	switch b := b.(type) {
	case *array.Int32Builder:
		b.Append(int32(v.(int64)))
	case *array.Int64Builder:
		b.Append(v.(int64))
	case *array.BooleanBuilder:
		b.Append(v.(bool))
	case *array.Float32Builder:
		b.Append(float32(v.(float64)))
	case *array.Float64Builder:
		b.Append(v.(float64))
	case *array.StringBuilder:
		b.Append(v.(string))
	case *array.Decimal128Builder:
		b.Append(decimal128.FromI64(v.(int64)))
	case *array.Date32Builder:
		b.Append(arrow.Date32(v.(int64)))
	case *array.Time64Builder:
		b.Append(arrow.Time64(v.(int64)))
	case *array.TimestampBuilder:
		b.Append(arrow.Timestamp(v.(int64)))
	case *array.BinaryBuilder:
		b.Append([]byte(v.(string)))
	case *array.FixedSizeBinaryBuilder:
		b.Append([]byte(v.(string)))
	case *extensions.UUIDBuilder:
		b.Append(uuid.UUID([]byte(v.(string))))
	default:
		t.Fatalf("no values for a %T", b)
	}
}

// newTable makes an empty Iceberg table in a new directory.
func newTable(t *testing.T, schema *iceberg.Schema, opts ...catalog.CreateTableOpt) *table.Table {
	t.Helper()
	store, err := hadoop.NewCatalog("test", filepath.Join(t.TempDir(), "warehouse"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := store.CreateNamespace(t.Context(), table.Identifier{"db"}, nil); err != nil {
		t.Fatal(err)
	}
	opts = append(opts, catalog.WithProperties(iceberg.Properties{"format-version": "3"}))
	made, err := store.CreateTable(t.Context(), table.Identifier{"db", "t"}, schema, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// appendRows commits rows as a new file, or as one file per partition.
func appendRows(t *testing.T, to *table.Table, rows []row) *table.Table {
	t.Helper()
	schema, err := table.SchemaToArrowSchema(to.Schema(), nil, true, false)
	if err != nil {
		t.Fatal(err)
	}
	batch := batchOf(t, schema, rows)
	defer batch.Release()
	reader, err := array.NewRecordReader(schema, []arrow.RecordBatch{batch})
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Release()
	grown, err := to.Append(t.Context(), reader, nil)
	if err != nil {
		t.Fatal(err)
	}
	return grown
}

// readFiles returns the ids in each file of a table.
func readFiles(t *testing.T, from *table.Table) map[string][]int64 {
	t.Helper()
	scan := from.Scan(table.WithSelectedFields("id"))
	tasks, err := scan.PlanFiles(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]int64{}
	for _, task := range tasks {
		_, batches, err := scan.ReadTasks(t.Context(), []table.FileScanTask{task})
		if err != nil {
			t.Fatal(err)
		}
		files[task.File.FilePath()] = idsOf(t, batches)
	}
	return files
}

// idsOf returns the ids of all batches of a scan.
func idsOf(t *testing.T, batches iter.Seq2[arrow.RecordBatch, error]) []int64 {
	t.Helper()
	ids := []int64{}
	for batch, err := range batches {
		if err != nil {
			t.Fatal(err)
		}
		at := batch.Schema().FieldIndices("id")[0]
		ids = append(ids, batch.Column(at).(*array.Int64).Int64Values()...)
		batch.Release()
	}
	return ids
}
