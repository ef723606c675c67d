// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package icetest

import (
	"encoding/base64"
	"fmt"
	"time"

	ice "github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
	"github.com/google/uuid"
)

// PlainSchema has the columns of most test tables: a unique id, a number, a category and a text.
func PlainSchema() *ice.Schema {
	return ice.NewSchema(0,
		ice.NestedField{ID: 1, Name: "id", Type: ice.PrimitiveTypes.Int64, Required: true},
		ice.NestedField{ID: 2, Name: "number", Type: ice.PrimitiveTypes.Float64},
		ice.NestedField{ID: 3, Name: "category", Type: ice.PrimitiveTypes.String},
		ice.NestedField{ID: 4, Name: "text", Type: ice.PrimitiveTypes.String},
	)
}

// PlainRows returns the rows with ids [lo, hi): number is null in every 7th, category is one of "a" to "e" and null in every 11th.
func PlainRows(lo, hi int) []Row {
	rows := make([]Row, 0, hi-lo)
	for id := lo; id < hi; id++ {
		r := Row{
			"id":       id,
			"number":   float64(id) / 4,
			"category": string(rune('a' + id%5)),
			"text":     fmt.Sprintf("text of row %06d", id),
		}
		if id%7 == 0 {
			delete(r, "number")
		}
		if id%11 == 0 {
			delete(r, "category")
		}
		rows = append(rows, r)
	}
	return rows
}

// Plain makes a table with the given number of files and of rows per file, in row groups of at most group rows, with ids from 0 on.
func (w *Warehouse) Plain(name string, version, files, rows, group int, options ...Option) *Table {
	w.tb.Helper()
	t := w.Create(name, version, PlainSchema(), append(options, RowGroup(group))...)
	for f := range files {
		t.Append(PlainRows(f*rows, (f+1)*rows)...)
	}
	return t
}

// NoSnapshot makes a table to which nothing was ever written.
func (w *Warehouse) NoSnapshot(name string) *Table {
	w.tb.Helper()
	return w.Create(name, 2, PlainSchema())
}

// Empty makes a table whose rows are all deleted.
func (w *Warehouse) Empty(name string) *Table {
	w.tb.Helper()
	t := w.Plain(name, 2, 1, 10, 100)
	t.Delete(ice.GreaterThanEqual(ice.Reference("id"), int64(0)), func(Row) bool { return true })
	return t
}

// PrimitiveSchema has a column of every primitive type of format v2, named by its type.
func PrimitiveSchema() *ice.Schema {
	types := []struct {
		name string
		t    ice.Type
	}{
		{"boolean", ice.PrimitiveTypes.Bool},
		{"int", ice.PrimitiveTypes.Int32},
		{"long", ice.PrimitiveTypes.Int64},
		{"float", ice.PrimitiveTypes.Float32},
		{"double", ice.PrimitiveTypes.Float64},
		{"decimal9", ice.DecimalTypeOf(9, 2)},
		{"decimal18", ice.DecimalTypeOf(18, 4)},
		{"decimal38", ice.DecimalTypeOf(38, 10)},
		{"date", ice.PrimitiveTypes.Date},
		{"time", ice.PrimitiveTypes.Time},
		{"timestamp", ice.PrimitiveTypes.Timestamp},
		{"timestamptz", ice.PrimitiveTypes.TimestampTz},
		{"string", ice.PrimitiveTypes.String},
		{"uuid", ice.PrimitiveTypes.UUID},
		{"fixed", ice.FixedTypeOf(5)},
		{"binary", ice.PrimitiveTypes.Binary},
	}
	fields := []ice.NestedField{{ID: 1, Name: "id", Type: ice.PrimitiveTypes.Int64, Required: true}}
	for i, t := range types {
		fields = append(fields, ice.NestedField{ID: i + 2, Name: t.name, Type: t.t})
	}
	return ice.NewSchema(0, fields...)
}

// PrimitiveRows returns n rows of PrimitiveSchema; in row i, column i%17 is null.
func PrimitiveRows(n int) []Row {
	rows := make([]Row, n)
	for i := range rows {
		at := time.Date(1969, 12, 31, 20, 0, 0, 0, time.UTC).Add(time.Duration(i) * 7_919_123_457 * time.Microsecond)
		rows[i] = Row{
			"id":          i,
			"boolean":     i%2 == 0,
			"int":         i*1000 - 5000,
			"long":        int64(i)<<40 - 1<<44,
			"float":       float32(i) / 8,
			"double":      float64(i) / -1024,
			"decimal9":    fmt.Sprintf("%d.%02d", i*31-70, i%100),
			"decimal18":   fmt.Sprintf("%d.%04d", i*1_000_003, i),
			"decimal38":   fmt.Sprintf("1234567890123456789012%06d.%010d", i, i),
			"date":        at.Format("2006-01-02"),
			"time":        at.Format("15:04:05.000000"),
			"timestamp":   at.Format("2006-01-02T15:04:05.000000"),
			"timestamptz": at.Format("2006-01-02T15:04:05.000000Z"),
			"string":      fmt.Sprintf("ünïcode %d", i),
			"uuid":        uuid.NewSHA1(uuid.Nil, []byte{byte(i), byte(i >> 8)}).String(),
			"fixed":       base64.StdEncoding.EncodeToString([]byte{byte(i), 1, 2, 3, 0xff}),
			"binary":      base64.StdEncoding.EncodeToString(make([]byte, i%9)),
		}
		if f := PrimitiveSchema().Fields()[i%17]; !f.Required {
			delete(rows[i], f.Name)
		}
	}
	return rows
}

// Primitives makes a table with a column of every primitive type.
func (w *Warehouse) Primitives(name string, version int) *Table {
	w.tb.Helper()
	t := w.Create(name, version, PrimitiveSchema(), RowGroup(40))
	t.Append(PrimitiveRows(100)...)
	return t
}

// NestedSchema has lists, structs and maps, also nested in each other.
func NestedSchema() *ice.Schema {
	point := &ice.StructType{FieldList: []ice.NestedField{
		{ID: 20, Name: "x", Type: ice.PrimitiveTypes.Int32},
		{ID: 21, Name: "y", Type: ice.PrimitiveTypes.String},
		{ID: 22, Name: "deep", Type: &ice.StructType{FieldList: []ice.NestedField{
			{ID: 23, Name: "a", Type: ice.PrimitiveTypes.Int64},
			{ID: 24, Name: "b", Type: ice.PrimitiveTypes.Float32},
		}}},
	}}
	return ice.NewSchema(0,
		ice.NestedField{ID: 1, Name: "id", Type: ice.PrimitiveTypes.Int64, Required: true},
		ice.NestedField{ID: 2, Name: "tokens", Type: &ice.ListType{ElementID: 30, Element: ice.PrimitiveTypes.Int32, ElementRequired: true}},
		ice.NestedField{ID: 3, Name: "point", Type: point},
		ice.NestedField{ID: 4, Name: "points", Type: &ice.ListType{ElementID: 31, Element: &ice.StructType{FieldList: []ice.NestedField{
			{ID: 32, Name: "x", Type: ice.PrimitiveTypes.Int32},
			{ID: 33, Name: "tags", Type: &ice.ListType{ElementID: 34, Element: ice.PrimitiveTypes.String}},
		}}}},
		ice.NestedField{ID: 5, Name: "counts", Type: &ice.MapType{
			KeyID: 35, KeyType: ice.PrimitiveTypes.String, ValueID: 36, ValueType: ice.PrimitiveTypes.Int64,
		}},
		ice.NestedField{ID: 6, Name: "index", Type: &ice.MapType{
			KeyID: 37, KeyType: ice.PrimitiveTypes.Int32, ValueID: 38, ValueType: &ice.StructType{FieldList: []ice.NestedField{
				{ID: 39, Name: "p", Type: ice.PrimitiveTypes.Float64},
				{ID: 40, Name: "q", Type: &ice.ListType{ElementID: 41, Element: ice.PrimitiveTypes.UUID}},
			}},
		}},
	)
}

// NestedRows returns the rows with ids [lo, hi) of NestedSchema, with nulls and empty lists at every level.
func NestedRows(lo, hi int) []Row {
	rows := make([]Row, 0, hi-lo)
	for i := lo; i < hi; i++ {
		r := Row{"id": i}
		if i%4 != 0 {
			tokens := make([]int, i%6)
			for k := range tokens {
				tokens[k] = i * k
			}
			r["tokens"] = tokens
		}
		if i%3 != 0 {
			r["point"] = Row{"x": i, "y": nullEvery(i, 5, fmt.Sprint("y", i)), "deep": nullEvery(i, 2, Row{"a": i, "b": 0.5})}
		}
		if i%5 != 1 {
			points := []any{}
			for k := range i % 4 {
				points = append(points, nullEvery(i+k, 6, Row{"x": k, "tags": nullEvery(i+k, 3, []any{"t", nil, fmt.Sprint(k)})}))
			}
			r["points"] = points
		}
		counts := []any{}
		for k := range i % 3 {
			counts = append(counts, Row{"key": fmt.Sprint("k", k), "value": nullEvery(i, 4, i+k)})
		}
		r["counts"] = nullEvery(i, 8, counts)
		id := uuid.NewSHA1(uuid.Nil, []byte{byte(i)}).String()
		r["index"] = []any{Row{"key": i, "value": nullEvery(i, 7, Row{"p": 1.5, "q": []any{id, nil}})}}
		rows = append(rows, r)
	}
	return rows
}

// nullEvery returns null for every n-th i, else v.
func nullEvery(i, n int, v any) any {
	if i%n == 0 {
		return nil
	}
	return v
}

// Nested makes a table of lists, structs and maps.
func (w *Warehouse) Nested(name string, version int) *Table {
	w.tb.Helper()
	t := w.Create(name, version, NestedSchema(), RowGroup(32))
	t.Append(NestedRows(0, 100)...)
	return t
}

// Identity returns an identity partition field.
func Identity(source, id int, name string) ice.PartitionField {
	return ice.PartitionField{SourceIDs: []int{source}, FieldID: id, Name: name, Transform: ice.IdentityTransform{}}
}

// ByCategory makes a table partitioned by category: two commits, with a file per category and commit.
func (w *Warehouse) ByCategory(name string, version int) *Table {
	w.tb.Helper()
	t := w.Create(name, version, PlainSchema(), RowGroup(16), Partitioned(Identity(3, 1000, "category")))
	t.Append(PlainRows(0, 100)...)
	t.Append(PlainRows(100, 200)...)
	return t
}

// Deleted makes a table with positional deletes throughout its row groups, from two commits: delete files in format v2, deletion
// vectors in v3. One data file has no deletes.
func (w *Warehouse) Deleted(name string, version int) *Table {
	w.tb.Helper()
	t := w.Plain(name, version, 3, 100, 32)
	t.Delete(ice.IsIn(ice.Reference("id"), int64(0), int64(31), int64(32), int64(63), int64(99), int64(100), int64(150)), func(r Row) bool {
		switch r["id"].(int) {
		case 0, 31, 32, 63, 99, 100, 150:
			return true
		}
		return false
	})
	t.Delete(ice.NewAnd(ice.GreaterThanEqual(ice.Reference("id"), int64(64)), ice.LessThan(ice.Reference("id"), int64(96))), func(r Row) bool {
		return r["id"].(int) >= 64 && r["id"].(int) < 96
	})
	return t
}

// EqualDeleted makes a table with equality deletes on one and on two columns, on a null, and on rows that were written again later.
func (w *Warehouse) EqualDeleted(name string, version int) *Table {
	w.tb.Helper()
	t := w.Plain(name, version, 2, 100, 32)
	t.DeleteEqual([]string{"id"}, Row{"id": 3}, Row{"id": 40}, Row{"id": 150}, Row{"id": 9999})
	t.DeleteEqual([]string{"text", "category"}, Row{"category": "b", "text": "text of row 000006"},
		Row{"category": nil, "text": "text of row 000022"}, Row{"category": "a", "text": "text of row 000033"})
	t.Append(PlainRows(40, 42)...)
	t.DeleteEqual([]string{"id"}, Row{"id": 41})
	return t
}

// Evolved makes a table whose schema changed between its files: columns added, dropped, renamed, promoted and moved, also within a
// struct.
func (w *Warehouse) Evolved(name string, version int) *Table {
	w.tb.Helper()
	schema := ice.NewSchema(0,
		ice.NestedField{ID: 1, Name: "id", Type: ice.PrimitiveTypes.Int64, Required: true},
		ice.NestedField{ID: 2, Name: "count", Type: ice.PrimitiveTypes.Int32},
		ice.NestedField{ID: 3, Name: "ratio", Type: ice.PrimitiveTypes.Float32},
		ice.NestedField{ID: 4, Name: "price", Type: ice.DecimalTypeOf(9, 2)},
		ice.NestedField{ID: 5, Name: "old", Type: ice.PrimitiveTypes.String},
		ice.NestedField{ID: 6, Name: "gone", Type: ice.PrimitiveTypes.String},
		ice.NestedField{ID: 7, Name: "place", Type: &ice.StructType{FieldList: []ice.NestedField{
			{ID: 8, Name: "lat", Type: ice.PrimitiveTypes.Float32},
			{ID: 9, Name: "junk", Type: ice.PrimitiveTypes.String},
			{ID: 10, Name: "inner", Type: &ice.StructType{FieldList: []ice.NestedField{
				{ID: 11, Name: "m", Type: ice.PrimitiveTypes.Int32},
				{ID: 12, Name: "n", Type: ice.PrimitiveTypes.String},
			}}},
		}}},
	)
	t := w.Create(name, version, schema, RowGroup(8))
	for i := range 20 {
		row := Row{"id": i, "count": i, "ratio": 0.5, "price": "1.25", "old": "o", "gone": "g"}
		if i%4 != 0 {
			row["place"] = Row{"lat": 1.5, "junk": "j", "inner": nullEvery(i, 3, Row{"m": i, "n": "n"})}
		}
		t.rows = append(t.rows, row)
	}
	first := t.rows
	t.rows = nil
	t.Append(first...)
	t.Evolve(func(u *table.UpdateSchema) {
		u.AddColumn([]string{"added"}, ice.PrimitiveTypes.String, "an added column", false, nil)
		u.DeleteColumn([]string{"gone"})
		u.RenameColumn([]string{"old"}, "new")
		u.UpdateColumn([]string{"count"}, table.ColumnUpdate{FieldType: some(ice.Type(ice.PrimitiveTypes.Int64))})
		u.UpdateColumn([]string{"ratio"}, table.ColumnUpdate{FieldType: some(ice.Type(ice.PrimitiveTypes.Float64))})
		u.UpdateColumn([]string{"price"}, table.ColumnUpdate{FieldType: some(ice.Type(ice.DecimalTypeOf(20, 2)))})
		u.MoveFirst([]string{"price"})
		u.DeleteColumn([]string{"place", "junk"})
		u.DeleteColumn([]string{"place", "inner", "n"})
		u.RenameColumn([]string{"place", "lat"}, "latitude")
		u.AddColumn([]string{"place", "extra"}, ice.PrimitiveTypes.Int32, "", false, nil)
	}, func(r Row) {
		r["new"] = r["old"]
		if place, ok := r["place"].(Row); ok {
			delete(place, "junk")
			place["latitude"] = place["lat"]
			delete(place, "lat")
			if inner, ok := place["inner"].(Row); ok {
				delete(inner, "n")
			}
		}
	})
	for i := 20; i < 40; i++ {
		t.Append(Row{
			"id": i, "count": int64(i) << 33, "ratio": 0.1, "price": "123456789012345678.25", "new": "o2", "added": "a",
			"place": Row{"latitude": 2.5, "extra": i, "inner": Row{"m": -i}},
		})
		if i == 21 {
			break
		}
	}
	return t
}

func some[T any](v T) ice.Optional[T] { return ice.Optional[T]{Val: v, Valid: true} }

// History makes a table with three snapshots, a tag "first" on the first, a branch "side" on the second, and a column that the third
// renamed.
func (w *Warehouse) History(name string, version int) (*Table, [3]Snapshot) {
	w.tb.Helper()
	var states [3]Snapshot
	t := w.Plain(name, version, 1, 50, 16)
	states[0] = t.Snapshot()
	t.Append(PlainRows(50, 80)...)
	states[1] = t.Snapshot()
	t.Evolve(func(u *table.UpdateSchema) { u.RenameColumn([]string{"text"}, "words") }, func(r Row) { r["words"] = r["text"] })
	t.Delete(ice.LessThan(ice.Reference("id"), int64(20)), func(r Row) bool { return r["id"].(int) < 20 })
	states[2] = t.Snapshot()
	t.Tag("first", states[0].ID)
	t.Branch("side", states[1].ID)
	return t, states
}
