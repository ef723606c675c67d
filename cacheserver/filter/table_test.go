// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/extensions"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/google/uuid"

	"github.com/kubeflow/datacache/cacheserver/column"
	"github.com/kubeflow/datacache/cacheserver/filter/syntax"
	"github.com/kubeflow/datacache/cacheserver/predicate"
)

// schema has a column of each type that filters support, at the top level and in structs, and some that they don't.
func schema() *arrow.Schema {
	p := arrow.PrimitiveTypes
	optional := func(name string, typ arrow.DataType) arrow.Field {
		return arrow.Field{Name: name, Type: typ, Nullable: true}
	}
	inner := arrow.StructOf(optional("z", arrow.BinaryTypes.String), optional("f", p.Float64))
	at := func(unit arrow.TimeUnit, zone string) arrow.DataType {
		return &arrow.TimestampType{Unit: unit, TimeZone: zone}
	}
	return arrow.NewSchema([]arrow.Field{
		{Name: "id", Type: p.Int64},
		optional("i", p.Int32), optional("l", p.Int64), optional("b", arrow.FixedWidthTypes.Boolean), optional("f", p.Float32),
		optional("d", p.Float64), optional("s", arrow.BinaryTypes.String), optional("dec", &arrow.Decimal128Type{Precision: 10, Scale: 2}),
		optional("wide", &arrow.Decimal128Type{Precision: 38, Scale: 5}), optional("date", arrow.FixedWidthTypes.Date32), optional("time", arrow.FixedWidthTypes.Time64us),
		optional("ts", at(arrow.Microsecond, "")), optional("tz", at(arrow.Microsecond, "UTC")), optional("tsns", at(arrow.Nanosecond, "")),
		optional("tzns", at(arrow.Nanosecond, "UTC")), optional("bin", arrow.BinaryTypes.Binary), optional("fix", &arrow.FixedSizeBinaryType{ByteWidth: 2}),
		optional("u", extensions.NewUUIDType()),
		optional("group", arrow.StructOf(optional("x", p.Int32), optional("y", p.Int64), optional("inner", inner))),
		optional("odd name", p.Int32), optional("tags", arrow.ListOf(p.Int32)), optional("map", arrow.MapOf(arrow.BinaryTypes.String, p.Int32)),
	}, nil)
}

// allTypes are the columns of schema.
func allTypes() []column.Field { return column.FieldsOf(schema().Fields()) }

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

// sources describes the columns of schema that filters support.
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
		{"s", "s", words, quotedText, "string"},
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

// selected returns the ids of the rows that a filter selects.
func selected(t *testing.T, f *predicate.Filter, rows []row) []int64 {
	t.Helper()
	batch := batchOf(t, schema(), rows)
	defer batch.Release()
	var paths []column.Path
	for _, field := range f.Fields() {
		for i, top := range allTypes() {
			if p, ok := column.PathTo(i, top, field.ID); ok {
				paths = append(paths, p)
			}
		}
	}
	mask := predicate.NewMask(len(rows))
	if err := f.Evaluator(paths).Apply(mask, batch.Columns()); err != nil {
		t.Fatal(err)
	}
	ids := []int64{}
	for i, r := range rows {
		if mask.Has(i) {
			ids = append(ids, r["id"].(int64))
		}
	}
	return ids
}

// show formats the tree of a filter.
func show(n syntax.Node) string {
	join := func(terms []syntax.Node, by string) string {
		parts := make([]string, len(terms))
		for i, t := range terms {
			parts[i] = show(t)
		}
		return "(" + strings.Join(parts, by) + ")"
	}
	switch n := n.(type) {
	case syntax.Chain:
		return join(n.Terms, map[bool]string{false: " AND ", true: " OR "}[n.Or])
	case predicate.Test:
		text := fmt.Sprint(n.Field.Name, " ", n.Op)
		for _, v := range n.Values {
			text += " " + v.String()
		}
		if n.Negated {
			text = "NOT " + text
		}
		return text
	}
	return fmt.Sprint(n)
}

// depth is the depth of the tree of a filter.
func depth(n syntax.Node) int {
	chain, _ := n.(syntax.Chain)
	most := 0
	for _, t := range chain.Terms {
		most = max(most, depth(t))
	}
	return most + 1
}
