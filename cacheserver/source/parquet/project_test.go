// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package parquet_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	pq "github.com/apache/arrow-go/v18/parquet"
	ice "github.com/apache/iceberg-go"
	"github.com/google/go-cmp/cmp"

	"github.com/kubeflow/datacache/cacheserver/column"
	"github.com/kubeflow/datacache/cacheserver/source/parquet"
)

func structOf(fields ...ice.NestedField) ice.Type { return &ice.StructType{FieldList: fields} }

func nested(id int, name string, fields ...ice.NestedField) ice.NestedField {
	return ice.NestedField{ID: id, Name: name, Type: structOf(fields...)}
}

// TestProjection reads some columns in another order and under other names, and parts of nested columns: columns are found by field
// id, and Parquet columns that are not needed are not read.
func TestProjection(t *testing.T) {
	data := write(t, arrowSchema(t, fields()), rows(0, 20))
	x, name := ice.NestedField{ID: 6, Name: "x", Type: ice.PrimitiveTypes.Int64}, ice.NestedField{ID: 7, Name: "name", Type: ice.PrimitiveTypes.String}
	y := nested(8, "deep", ice.NestedField{ID: 9, Name: "y", Type: ice.PrimitiveTypes.Float64})
	added := ice.NestedField{ID: 99, Name: "added", Type: ice.PrimitiveTypes.Int64}
	tests := map[string]struct {
		fields []ice.NestedField
		leaves []int
		row    string // row 9
	}{
		"one":               {[]ice.NestedField{field(t, "text")}, []int{1}, `{"0":"text 4"}`},
		"other order":       {[]ice.NestedField{field(t, "text"), field(t, "id")}, []int{0, 1}, `{"0":"text 4","1":9}`},
		"list":              {[]ice.NestedField{field(t, "tokens")}, []int{2}, `{"0":[0]}`},
		"map":               {[]ice.NestedField{field(t, "counts")}, []int{6, 7}, `{"0":[{"key":"k","value":9}]}`},
		"renamed":           {[]ice.NestedField{{ID: 1, Name: "number", Type: ice.PrimitiveTypes.Int64}}, []int{0}, `{"0":9}`},
		"the name of other": {[]ice.NestedField{{ID: 2, Name: "id", Type: ice.PrimitiveTypes.String}}, []int{1}, `{"0":"text 4"}`},
		"struct, one field": {[]ice.NestedField{nested(5, "place", name)}, []int{4}, `{"0":{"name":"name 9"}}`},
		"struct, swapped":   {[]ice.NestedField{nested(5, "place", name, x)}, []int{3, 4}, `{"0":{"name":"name 9","x":9}}`},
		"struct in struct":  {[]ice.NestedField{nested(5, "place", y)}, []int{5}, `{"0":{"deep":null}}`},
		"struct, a field that the file lacks": {
			[]ice.NestedField{nested(5, "place", added, x)}, []int{3}, `{"0":{"added":null,"x":9}}`},
		"struct, no field that the file has": { // the file's first field shows which structs are null
			[]ice.NestedField{nested(5, "place", added)}, []int{3}, `{"0":{"added":null}}`},
		"the file lacks it": {[]ice.NestedField{added, field(t, "id")}, []int{0}, `{"0":null,"1":9}`},
		"of nothing":        {[]ice.NestedField{added}, []int{}, `{"0":null}`},
		"wider, in a list": {[]ice.NestedField{{ID: 3, Name: "tokens", Type: &ice.ListType{ElementID: 4, Element: ice.PrimitiveTypes.Int64}}},
			[]int{2}, `{"0":[0]}`},
	}
	for what, tt := range tests {
		t.Run(what, func(t *testing.T) {
			o := must(t, data, tt.fields...)
			if diff := cmp.Diff(tt.leaves, append([]int{}, o.projection.Leaves()...)); diff != "" {
				t.Errorf("Parquet columns that are read (-want +got):\n%s", diff)
			}
			got, err := o.read(t, 0, 0, 20)
			if err != nil {
				t.Fatal(err)
			}
			if len(got) != 20 || got[9] != tt.row {
				t.Errorf("%d rows, want 20; row 9 is %s, want %s", len(got), slices.Concat(got, make([]string, 10))[9], tt.row)
			}
		})
	}
	t.Run("map, a field of its values", func(t *testing.T) {
		values := func(fields ...ice.NestedField) ice.NestedField {
			return ice.NestedField{ID: 1, Name: "m", Type: &ice.MapType{KeyID: 2, KeyType: ice.PrimitiveTypes.String, ValueID: 3, ValueType: structOf(fields...)}}
		}
		a, b := ice.NestedField{ID: 4, Name: "a", Type: ice.PrimitiveTypes.Int64}, ice.NestedField{ID: 5, Name: "b", Type: ice.PrimitiveTypes.Int64}
		data := write(t, arrowSchema(t, []ice.NestedField{values(a, b)}), []string{`{"m":[{"key":"k","value":{"a":1,"b":2}}]}`})
		got, err := must(t, data, values(b)).read(t, 0, 0, 1)
		if diff := cmp.Diff([]string{`{"0":[{"key":"k","value":{"b":2}}]}`}, got); diff != "" || err != nil {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
	})
	t.Run("a null struct stays null", func(t *testing.T) {
		got, err := must(t, data, nested(5, "place", added)).read(t, 0, 3, 4)
		if diff := cmp.Diff([]string{`{"0":null}`}, got); diff != "" || err != nil {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
	})
}

// TestMissing reads columns that the file lacks: the result is a default, null, or an error that names file and column.
func TestMissing(t *testing.T) {
	data := write(t, arrowSchema(t, fields()[:1]), rows(0, 20))
	tests := map[string]struct {
		field ice.NestedField
		value *column.Value
		want  string // the cell; if wrong is set, a part of the error
		wrong bool
	}{
		"a number":           {ice.NestedField{Type: ice.PrimitiveTypes.Int32}, new(column.IntValue(-7)), "-7", false},
		"a float":            {ice.NestedField{Type: ice.PrimitiveTypes.Float64}, new(column.FloatValue(0.5)), "0.5", false},
		"a boolean":          {ice.NestedField{Type: ice.PrimitiveTypes.Bool}, new(column.IntValue(1)), "true", false},
		"a text":             {ice.NestedField{Type: ice.PrimitiveTypes.String}, new(column.BytesValue("it's")), `"it's"`, false},
		"null":               {ice.NestedField{Type: ice.PrimitiveTypes.Int32}, nil, "null", false},
		"required, a number": {ice.NestedField{Type: ice.PrimitiveTypes.Int32, Required: true}, new(column.IntValue(3)), "3", false},
		"required":           {ice.NestedField{Type: ice.PrimitiveTypes.Int32, Required: true}, nil, "required, but the file lacks it", true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			tt.field.ID, tt.field.Name = 99, "added"
			o, err := projectWith(t, data, func(column.Field) (*column.Value, error) { return tt.value, nil }, tt.field, field(t, "id"))
			if tt.wrong {
				wantError(t, err, "data.parquet", `column "added"`, tt.want)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got, err := o.read(t, 0, 8, 10)
			want := []string{fmt.Sprintf(`{"0":%s,"1":8}`, tt.want), fmt.Sprintf(`{"0":%s,"1":9}`, tt.want)}
			if diff := cmp.Diff(want, got); diff != "" || err != nil {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
}

// TestRequired checks that nulls in a column that the table requires are an error.
func TestRequired(t *testing.T) {
	required := field(t, "id")
	required.Required = true
	_, err := must(t, write(t, arrowSchema(t, fields()[:1]), rows(0, 10)), required).read(t, 0, 0, 10)
	wantError(t, err, `column "id"`, "required, but has 1 nulls")
}

// TestTypes reads columns with types that differ from the file's: a wider type yields the same values, any other is an error that
// names file, column and both types.
func TestTypes(t *testing.T) {
	long, text := ice.PrimitiveTypes.Int64, ice.PrimitiveTypes.String
	list := func(t ice.Type) ice.Type { return &ice.ListType{ElementID: 2, Element: t} }
	dictionary := func(k, v ice.Type) ice.Type { return &ice.MapType{KeyID: 2, KeyType: k, ValueID: 3, ValueType: v} }
	inside := func(t ice.Type) ice.Type { return structOf(ice.NestedField{ID: 2, Name: "x", Type: t}) }
	tests := map[string]struct {
		file, table ice.Type
		cell, want  string   // a cell of the file and its value in the other type, or
		wrong       []string // parts of the error
	}{
		"int as long":           {ice.PrimitiveTypes.Int32, long, "-3", "-3", nil},
		"float as double":       {ice.PrimitiveTypes.Float32, ice.PrimitiveTypes.Float64, "0.25", "0.25", nil},
		"decimal, more digits":  {ice.DecimalTypeOf(9, 2), ice.DecimalTypeOf(20, 2), `"-1.25"`, `"-1.25"`, nil},
		"date as timestamp":     {ice.PrimitiveTypes.Date, ice.PrimitiveTypes.Timestamp, `"2024-02-29"`, `"2024-02-29T00:00:00"`, nil},
		"string as binary":      {text, ice.PrimitiveTypes.Binary, `"abc"`, `"YWJj"`, nil},
		"long as int":           {long, ice.PrimitiveTypes.Int32, "1", "", []string{"int32", "int64"}},
		"string as long":        {text, long, `"1"`, "", []string{"int64", "utf8"}},
		"decimal, other scale":  {ice.DecimalTypeOf(9, 2), ice.DecimalTypeOf(9, 3), `"1.25"`, "", []string{"decimal"}},
		"decimal, fewer digits": {ice.DecimalTypeOf(9, 2), ice.DecimalTypeOf(5, 2), `"1.25"`, "", []string{"decimal"}},
		"zone":                  {ice.PrimitiveTypes.Timestamp, ice.PrimitiveTypes.TimestampTz, `"2024-02-29T00:00:00"`, "", []string{"one of them has a time zone"}},
		"primitive as struct":   {long, inside(long), "1", "", []string{"table says struct", "int64"}},
		"struct as primitive":   {inside(long), long, `{"x":1}`, "", []string{"table says long", "struct"}},
		"primitive as list":     {long, list(long), "1", "", []string{"table says list", "int64"}},
		"list as map":           {list(long), dictionary(long, long), "[1]", "", []string{"table says map", "list"}},
		"within a struct":       {inside(text), inside(long), `{"x":"a"}`, "", []string{"x: ", "int64", "utf8"}},
		"within a list":         {list(text), list(long), `["a"]`, "", []string{"int64", "utf8"}},
		"within a map, key":     {dictionary(text, text), dictionary(long, text), `[{"key":"a","value":"b"}]`, "", []string{"key: ", "int64", "utf8"}},
		"within a map, value":   {dictionary(text, text), dictionary(text, long), `[{"key":"a","value":"b"}]`, "", []string{"value: ", "int64", "utf8"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			named := func(of ice.Type) ice.NestedField { return ice.NestedField{ID: 1, Name: "c", Type: of} }
			data := write(t, arrowSchema(t, []ice.NestedField{named(tt.file)}), []string{`{"c":` + tt.cell + `}`, `{"c":null}`}, pq.WithDictionaryDefault(false))
			o, err := project(t, data, named(tt.table))
			if tt.wrong != nil {
				wantError(t, err, append(tt.wrong, "data.parquet", `column "c"`)...)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got, err := o.read(t, 0, 0, 2)
			if diff := cmp.Diff([]string{`{"0":` + tt.want + `}`, `{"0":null}`}, got); diff != "" || err != nil {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
}

// TestNames checks that a file without field ids is read with the table's name mapping, and is rejected if there is none.
func TestNames(t *testing.T) {
	schema := arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64, Nullable: true}}, nil)
	f := open(t, write(t, schema, []string{`{"id":5}`}))
	_, err := parquet.ReadFooter(t.Context(), f, nil)
	wantError(t, err, "data.parquet", "no field ids", "schema.name-mapping.default")

	for name, want := range map[string]string{"id": `{"0":5}`, "other": `{"0":null}`} {
		footer, err := parquet.ReadFooter(t.Context(), f, parquet.NameMapping{{ID: 1, Names: []string{name}}})
		if err != nil {
			t.Fatal(err)
		}
		null := func(column.Field) (*column.Value, error) { return nil, nil }
		projection, err := parquet.NewProjection(footer, served(t, field(t, "id")), null)
		if err != nil {
			t.Fatal(err)
		}
		got, err := opened{f, footer, projection}.read(t, 0, 0, 1)
		if diff := cmp.Diff([]string{want}, got); diff != "" || err != nil {
			t.Errorf("mapped to %q: %v (-want +got):\n%s", name, err, diff)
		}
	}
}
